"""The Triton kernels of attention: forwards, backwards, the gradient of the bias, and their tiles."""
