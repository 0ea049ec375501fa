"""Whole models under a memory budget: which implementation each layer gets, and how many samples at once."""
