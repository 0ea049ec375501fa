"""What implementations of all operators run on: compilers, launches, autograd, seeds, joint tensors.

Functions and kernels come in; what comes out runs on the current device, at little cost to the host. Nothing
here knows an operator.
"""
