"""Runtime of all operators' implementations: compilers, launches, autograd, seeds, joint tensors.

Functions and kernels come in; what comes out runs on the current device, at little cost to the host. Nothing
here knows an operator.
"""
