"""Existing models get chosen implementations in place, and get back what they had."""
