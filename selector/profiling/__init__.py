"""Profiling: measuring runs, their order, workers, and the freshness of stored measurements.

In: a wish in words and a budget of time. Out: records in the database.
"""
