"""Blocks of a model replayed as CUDA graphs."""
