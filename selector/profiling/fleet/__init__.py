"""Jobs of profiling shared by workers: queues in a database or behind a service; fleets."""
