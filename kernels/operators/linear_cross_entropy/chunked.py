"""Chunks of rows: a fused kernel turns logits into gradients, whose products follow in the forward pass.

All logits are never in memory: a chunk of 2 H rows, and the weight's gradient in float32, are what is
held. Three products as torch's, a third of its passes over logits, and nothing kept but the gradients.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem, Work
from . import ELEMENT_BYTES, counted
from ._module import FusedLinearLoss
from ._row_chunks import chunk_rows, loss
from ._support import refused


def work(problem: Problem) -> Work:
    """Three products, and the gradients of all inputs kept for backward."""
    rows, hidden, vocabulary = problem["rows"], problem["hidden"], problem["vocabulary"]
    kept = rows * hidden + vocabulary * (hidden + problem["bias"])
    chunks = -(-rows // chunk_rows(hidden))
    return counted(
        problem,
        rows=rows,
        products=3,
        passes=5,
        launches=12 + (4 + 2 * problem["bias"]) * chunks,
        saved=kept * ELEMENT_BYTES[problem["dtype"]],
    )


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses GPUs that Triton does not compile for."""
    return refused(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return FusedLinearLoss(problem, loss)
