"""Profile of a training step by module: memory and times."""
