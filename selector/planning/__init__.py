"""Training of a whole model within a memory limit: an implementation for each kind of layer, and a batch.

In: a model by its parts, a device, a limit. Out: a Plan. No torch.
"""
