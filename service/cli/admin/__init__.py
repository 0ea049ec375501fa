"""Commands of those who run a service: who may ask it, what counts, and who did what."""
