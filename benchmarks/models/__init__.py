"""Whole models, written in plain torch, with parts that can be exchanged: `python -m benchmarks.models`."""
