"""What layer_norm, rms_norm and dropout_add_norm share: modules, Triton kernels, inputs, counts."""
