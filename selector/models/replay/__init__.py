"""Replay of a model's blocks as CUDA graphs in training."""
