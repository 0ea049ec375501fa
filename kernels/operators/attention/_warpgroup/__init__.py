"""The CUDA kernels of attention for the warpgroup products of Hopper, and their launches."""
