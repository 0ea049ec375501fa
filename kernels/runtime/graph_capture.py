"""Captures of CUDA graphs that use no memory but what they were given and their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def graph_capture(graph: torch.cuda.CUDAGraph, *, stream: Any, pool: Any = None) -> Iterator[None]:
    """Capture of a CUDA graph on a stream, with the workspaces of cuBLAS in the graph's memory pool.

    torch keeps a workspace for each stream from its first matrix product on. After a warm-up on the capturing
    stream it lies outside of the pool, and torch.compile's "reduce-overhead" frees all workspaces: a graph
    replayed after that wrote into other tensors' memory. So they are freed before, and again afterwards,
    which leaves the graph's to its pool; products outside of graphs get new ones.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
