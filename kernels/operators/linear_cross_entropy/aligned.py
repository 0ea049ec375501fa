"""Chunks of rows, their logits in rows of aligned width: three products, each at the speed of an aligned one.

As `chunked`: logits become gradients in their place, and nothing else is kept. The weight is copied, with
zeros behind it, and a chunk's logits take up to 512 MiB, so that there are few of them.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from ...contract import Device, Problem, Work
from . import ELEMENT_BYTES, counted
from ._aligned_chunks import chunk_rows, loss
from ._module import FusedLinearLoss
from ._support import refused


def work(problem: Problem) -> Work:
    """Three products, the gradients of all inputs kept for backward, and the weight's copy."""
    return aligned_work(problem, problem["rows"])


def aligned_work(problem: Problem, rows: int) -> Work:
    """Counts for so many rows with a label."""
    hidden, vocabulary = problem["hidden"], problem["vocabulary"]
    element, chunks = ELEMENT_BYTES[problem["dtype"]], -(-rows // chunk_rows(rows, vocabulary))
    kept = (rows * hidden + vocabulary * (hidden + problem["bias"])) * element
    launches = 14 + (5 + 2 * problem["bias"]) * chunks
    found = counted(problem, rows=rows, products=3, passes=4, launches=launches, saved=kept)
    return replace(found, moved_bytes=found.moved_bytes + 2.0 * vocabulary * hidden * element)


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses GPUs that Triton does not compile for."""
    return refused(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return FusedLinearLoss(problem, loss)
