"""Import and export of measurements: files and databases.

In: files of others, databases. Out: stored rows and files, or a report of what was wrong, line by line.
"""
