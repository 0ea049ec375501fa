"""Recurrent modules replayed as CUDA graphs: calls captured once an input shape, inputs copied in."""
