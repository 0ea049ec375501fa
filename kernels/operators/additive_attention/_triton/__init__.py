"""Triton kernels of additive attention: both passes, their tiles, and the function that launches them."""
