"""Memory and times of the training step of a model, module by module."""
