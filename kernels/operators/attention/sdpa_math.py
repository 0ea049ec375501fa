"""torch's math backend: the equations in torch's own operations, with float32 inside for 16 bits.

The one that torch takes where no fused kernel serves. It keeps what `written_out` keeps, and copies of the
inputs besides: scaled, and in float32.
"""

from __future__ import annotations

from torch import nn
from torch.nn.attention import SDPBackend

from ...contract import Device, Problem, Work
from ._sdpa import sdpa_module
from ._work import ELEMENT_BYTES, Counts, key_elements, pairs, rows


def kept(problem: Problem) -> int:
    """Weights and scaled inputs, in float32 at least, without those that are kept by reference."""
    wide = max(4, ELEMENT_BYTES[problem["dtype"]])
    group = problem["heads"] // problem["kv_heads"]
    copies = rows(problem) * problem["head_dim"] + group * key_elements(problem)
    if wide > ELEMENT_BYTES[problem["dtype"]] or group > 1:
        copies += group * key_elements(problem)
    dropped = pairs(problem) * (wide + 1) if problem["dropout"] else 0
    return int((pairs(problem) + copies) * wide + dropped)


COUNTS = Counts(products=(2, 4), launches=(9, 12), passes=(8, 10), kept=kept, skips=False)


def work(problem: Problem) -> Work:
    """Products over all pairs, and a pass for each operation between them."""
    return COUNTS.work(problem)


def unsupported(problem: Problem, _device: Device) -> str | None:
    """Refuses to return weights, which torch's function does not."""
    if problem["return_weights"]:
        return "torch's function returns no weights, whichever backend it takes"
    return None


def build(problem: Problem) -> nn.Module:
    """torch's attention, with this backend alone."""
    return sdpa_module(problem, SDPBackend.MATH)
