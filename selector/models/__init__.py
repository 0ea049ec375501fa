"""Whole torch models: their layers, their memory, rewritten and replayed.

In: an nn.Module and example inputs. Out: layers, an inspection, a report of a rewriting.
"""
