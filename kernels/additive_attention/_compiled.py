"""The equations compiled by torch.compile, once for each circumstance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from ..contract import Device, Problem, Work
from . import _problem
from ._module import Attention, Call, Compute, Parameters

LEAST_CAPABILITY = (7, 0)  # of the compiler's own GPU kernels


def refused(device: Device) -> str | None:
    """Why nothing is compiled on a device, or None."""
    if device.kind != "cuda":
        return "torch.compile needs a C++ compiler for processors, which is not taken for granted"
    if device.compute_capability is not None and device.compute_capability < LEAST_CAPABILITY:
        return "torch.compile makes kernels for GPUs of compute capability 7.0 or later"
    return None


def compiled_module(problem: Problem, function: Compute) -> nn.Module:
    """The module whose computation is `function`, of a file, compiled."""

    def compute(query: Tensor, memory: Tensor, parameters: Parameters, call: Call) -> tuple[Tensor, Tensor]:
        given = (query, memory, *parameters, call.keys, call.lengths)
        circumstances = tuple(None if one is None else (one.shape, one.stride()) for one in given)
        autocast = torch.is_autocast_enabled(query.device.type)
        key = (query.dtype, query.device, torch.is_grad_enabled(), autocast, *call[2:])
        return _compiled(function, circumstances, key)(query, memory, parameters, call)

    return Attention(problem, compute, traced=False)


def compiled_work(problem: Problem, *, kept: int) -> Work:
    """The counts of compiled equations that keep the tensor inside the tanh `kept` times."""
    least = _problem.work(problem)
    training = problem["mode"] == "training"
    wide = _problem.elements(problem) * _problem.element_bytes(problem)
    # kept: written, read by the product, and in backward read and turned into its gradient, which is summed
    # twice; not kept: computed again for each of the sums
    moved = (2 * kept + (4 * kept if training else 0)) * wide
    return replace(
        least,
        moved_bytes=least.moved_bytes + moved,
        saved_bytes=least.saved_bytes + kept * wide if training else 0,
        launches=17 if training else 6,
        steps=11 if training else 5,
    )


@lru_cache(maxsize=256)
def _compiled(function: FunctionType, *_circumstances: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    """A compiled copy for each circumstance: of one code object few variants are compiled, then none."""
    own = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    compiled: Callable[..., tuple[Tensor, Tensor]] = torch.compile(own, dynamic=False, fullgraph=True)
    return compiled
