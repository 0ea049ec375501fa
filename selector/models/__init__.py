"""Analysis and rewriting of whole torch models: layers, memory, replacements, CUDA graph replay.

In: an nn.Module and example inputs. Out: layers, an inspection, a report of a rewriting.
"""
