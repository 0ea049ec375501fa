"""Layers with the input projection hoisted out of the time loop: a layer, and the loops of each cell."""
