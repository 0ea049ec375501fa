"""The choice: from a question, by measurements and the cost model, to an implementation.

In: a query and the state of a database. Out: a Choice, with its evidence, and why not the others.
Read answer.py first.
"""
