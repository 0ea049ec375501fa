"""Interchangeable implementations of neural-network layers, and the tools that gate and measure them.

Needs torch and the standard library alone. Importing this package imports nothing and touches no GPU.
Every import inside it is relative, so that it works both as `kernels` (from a checkout, for example
`python -m kernels.measure` on a GPU machine) and as `kernel_selector.kernels` (installed).
"""
