"""Chunks of 4096 classes or more: one number a row is kept, and backward computes the logits again.

The least memory: beside the gradients there is a chunk of logits, and x's gradient in float32. A fourth
product is its price, a third more than torch's three.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem, Work
from . import counted
from ._column_chunks import chunk_columns, loss
from ._module import FusedLinearLoss
from ._support import refused


def work(problem: Problem) -> Work:
    """Four products; a number is kept for each row."""
    chunks = -(-problem["vocabulary"] // chunk_columns(problem["rows"]))
    return counted(
        problem,
        rows=problem["rows"],
        products=4,
        passes=7,
        launches=16 + (6 + problem["bias"]) * chunks,
        saved=problem["rows"] * (8 if problem["dtype"] == "float64" else 4),
    )


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses GPUs that Triton does not compile for."""
    return refused(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return FusedLinearLoss(problem, loss)
