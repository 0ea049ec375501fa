"""The equations of `kernels/operators/dropout_add_norm/__init__.py`, line by line, in any precision.

Nothing is dropped: what is random cannot be compared, and the gate sets `dropout` to 0.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...contract import Problem
from ...norms.added import Call, added_module


def normalised(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call
) -> tuple[Tensor, Any]:
    """x and residual [..., H] to y and z [..., H]."""
    z = residual + x
    d = z if call.form.rms else z - z.mean(-1, keepdim=True)
    y = d / (d.square().mean(-1, keepdim=True) + call.form.eps).sqrt()
    if weight is not None:
        y = y * weight
    return (y if bias is None else y + bias), z


def build(problem: Problem) -> nn.Module:
    """The reference for a problem; the gate runs it in float64."""
    return added_module(problem, normalised)
