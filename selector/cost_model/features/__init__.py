"""Physical features of a problem, an implementation and a device, as columns of numbers."""
