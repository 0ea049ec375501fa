"""Triton kernels that compute the tanh tile by tile, in both passes, and keep q, k and weights alone.

Forwards one kernel sums the scores and one turns them into weights; backwards one takes the softmax back and
one makes every gradient from one tanh for each element, without atomics. Layouts are strides. The sums of a
layer norm over the features of q + k are made of those of q and k and of a product: see `_triton`.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from ...contract import Device, Problem, Work
from . import _operator
from ._equations import attend
from ._module import Attention, Call, Parameters
from ._triton.launch import weigh
from ._triton.tiles import backward_cut

LEAST_CAPABILITY = (8, 0)


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, old GPUs, float64, and the scores that have nothing inside."""
    if device.kind != "cuda":
        return "Triton compiles for GPUs, and this device is none"
    if device.compute_capability is not None and device.compute_capability < LEAST_CAPABILITY:
        return "needs compute capability 8.0 or later, for bfloat16"
    if problem["dtype"] == "float64":
        return "computes in float32 inside, which is not float64"
    if problem["score"] != "additive":
        return f"has kernels for score=additive, and score={problem['score']} is a product alone"
    return None


def build(problem: Problem) -> nn.Module:
    """The module for a problem."""
    return Attention(problem, compute)


def compute(query: Tensor, memory: Tensor, parameters: Parameters, call: Call) -> tuple[Tensor, Tensor]:
    """Context and weights [B, N, T, S]."""
    return attend(query, memory, parameters, call, weigh)


def work(problem: Problem) -> Work:
    """The tanh once more, the scores in float32, and the parts of gradients that are added up in float32."""
    least = _operator.work(problem)
    batch, target, source, heads = (problem[name] for name in ("batch", "target", "source", "heads"))
    pairs = batch * heads * target * source * 4  # bytes of the scores
    norm = bool(problem["layer_norm"])
    if problem["mode"] != "training":
        moved = least.moved_bytes + pairs * (2 + 4 * norm)
        return replace(least, moved_bytes=moved, launches=5 + norm, steps=4 + norm)
    cut = backward_cut(batch * heads, target, source, problem["hidden"] // heads)
    parts = (
        4
        * batch
        * problem["hidden"]
        * (target * (2 * cut.s_tiles + cut.s_splits) + 2 * source * cut.t_splits)
    )
    return replace(
        least,
        flops=least.flops + 4 * _operator.elements(problem),
        moved_bytes=least.moved_bytes + parts + pairs * (4 + 14 * norm),
        launches=19 + 20 * norm,
        steps=14 + 10 * norm,
    )
