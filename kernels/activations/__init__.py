"""Shared parts of the operators gelu, relu, silu and feed_forward: equations in Triton, launches, refusals.

An activation is known here by a word: "gelu" (exact), "gelu_tanh", "relu" or "silu".
"""
