"""REST service and command line: HTTP requests and arguments in, choices and reports out.

Choices are answered by `selector`, as in Python. What the service alone stores or lists (tokens, records from
other machines, jobs by the page) goes through functions of `kernel_selector.db`.
"""
