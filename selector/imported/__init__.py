"""Measurements that others took, of operators whose kernels are elsewhere: read, learned, chosen from.

Such an operator is described by its measurements alone: the names and kinds of its hyperparameters, and the
implementations that were timed. What is missing (equations, counted work, code) is not made up.
"""
