"""Measurements that other machines send."""
