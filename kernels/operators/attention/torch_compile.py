"""The steps written out, compiled by torch.compile: one kernel for all that is between the products.

What a user gets who compiles attention written by hand. The compiler may know the steps and put torch's
fused attention in their place. The first call of a shape takes seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...contract import Device, Problem, Work
from ...runtime.torch_compile import refused_by_compiler
from ._module import Attention, Call, Outputs
from ._sdpa import written_out
from ._torch_compile import compiled
from ._work import Counts
from .written_out import kept

COUNTS = Counts(products=(2, 4), launches=(3, 6), passes=(4, 5), kept=kept, skips=False)


def work(problem: Problem) -> Work:
    """Products over all pairs, and a pass before and after each."""
    return COUNTS.work(problem)


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, whose compiler may be missing, and dropout of everything."""
    if problem["dropout"] == 1:
        return "is compiled without the special case of dropout 1"
    return refused_by_compiler(device)


def build(problem: Problem) -> nn.Module:
    """Attention by one compiled function."""
    return Attention(problem, attend)


def attend(call: Call) -> Outputs:
    """One call."""
    if torch.compiler.is_compiling():  # a compiler around it sees the steps themselves
        out, weights = written_out(call)
    else:
        out, weights = compiled(steps, call[:5], *call[5:])(*call)
    return (out, weights) if call.return_weights else out


def steps(*values: object) -> tuple[Tensor, Tensor | None]:
    """A call's values, to out and the weights if they are returned; as `written_out`, in one function."""
    call = Call(*values)  # type: ignore[arg-type]
    out, weights = written_out(call)
    return out, weights if call.return_weights else None
