"""`cublaslt` that keeps GELU's argument alone: its output is made again in backward, in one pass.

Half the memory between forward and backward, for one kernel more.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem
from ._cublaslt import EpilogueFeedForward, refused_by_epilogues
from ._work import Counts

work = Counts(forward=1, backward=4, kept=1, launches=(0, 2)).work


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what `cublaslt` refuses, relu, and inference, which keeps nothing."""
    if problem["activation"] == "relu":
        return "relu's output cannot be made again from a bit of each element: see `cublaslt`"
    if problem["mode"] == "inference":
        return "makes nothing again in inference: see `cublaslt`"
    return refused_by_epilogues(problem, device)


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return EpilogueFeedForward(problem, again=True)
