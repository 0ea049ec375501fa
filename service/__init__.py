"""The REST service and the command line: HTTP requests and words come in, choices and reports go out.

Choices are answered by `selector`, as in Python. What the service alone stores or lists (tokens, records from
other machines, jobs by the page) goes through functions of `kernel_selector.db`.
"""
