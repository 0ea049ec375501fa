"""Existing models that get chosen implementations in place, and get back what they had."""
