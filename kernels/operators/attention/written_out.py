"""Logits, softmax, dropout and products one by one, as in the equations, with torch's autograd.

What models wrote before there were fused kernels, and still write where the weights are returned or looked
at. Autograd keeps the weights, and with dropout the mask and the dropped weights as well.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem, Work
from ._module import Attention, Call, Outputs
from ._sdpa import written_out
from ._work import ELEMENT_BYTES, Counts, pairs


def kept(problem: Problem) -> int:
    """The weights, a mask of a byte and the dropped weights, which are an output where they are returned."""
    element = ELEMENT_BYTES[problem["dtype"]]
    copies = 1 + bool(problem["dropout"]) - problem["return_weights"]
    return int(pairs(problem) * (element * copies + bool(problem["dropout"])))


COUNTS = Counts(products=(2, 4), launches=(6, 8), passes=(7, 9), kept=kept, skips=False)


def work(problem: Problem) -> Work:
    """Products over all pairs, and a pass for each operation between them."""
    return COUNTS.work(problem)


def unsupported(problem: Problem, _device: Device) -> str | None:
    """Refuses bfloat16, unless torch itself does the same there: for returned weights."""
    if problem["dtype"] == "bfloat16" and not problem["return_weights"]:
        return "rounds logits to bfloat16, which is more than twice the error of torch's kernels"
    return None


def build(problem: Problem) -> nn.Module:
    """Attention step by step."""
    return Attention(problem, attend)


def attend(call: Call) -> Outputs:
    """One call."""
    out, weights = written_out(call)
    return (out, weights) if call.return_weights else out
