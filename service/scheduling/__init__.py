"""What cluster schedulers ask, in their words."""
