"""The operators, a folder each; each has its equations in `reference.py` and one file an implementation.

`registry` lists these folders: whatever has a `reference.py` here is an operator, and nothing else lies here.
"""
