"""The Triton kernels between the products of a feed-forward layer, and their launches."""
