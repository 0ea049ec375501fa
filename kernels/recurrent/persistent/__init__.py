"""Recurrent layers whose time loop is one CUDA kernel with the weights kept on chip."""
