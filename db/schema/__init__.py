"""The tables: of our measurements, of those that others took, and of profiling jobs."""
