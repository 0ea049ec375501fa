"""Measurements made: what to measure, in which order, by whom, and what of the database is out of date.

In: a wish in words and a budget of time. Out: records in the database.
"""
