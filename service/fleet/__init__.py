"""Profiling jobs in a database, queues of their tasks, and workers: here, over REST, on Ray and on Slurm."""
