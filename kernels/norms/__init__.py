"""Shared parts of layer_norm, rms_norm and dropout_add_norm: modules, Triton kernels, inputs, counts."""
