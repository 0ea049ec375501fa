"""Profiling jobs, their queues, and fleets of workers."""
