"""The equations compiled by torch.compile, once for each circumstance."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from ...contract import Problem, Work
from ...runtime.torch_compile import compiled
from . import _operator
from ._module import Attention, Call, Compute, Parameters


def compiled_module(problem: Problem, function: Compute) -> nn.Module:
    """The module whose computation is `function`, of a file, compiled."""
    return Attention(problem, partial(_compute, function))


def _compute(
    function: Compute, query: Tensor, memory: Tensor, parameters: Parameters, call: Call
) -> tuple[Tensor, Tensor]:
    given = (query, memory, *parameters, call.keys, call.lengths)
    circumstances = tuple(None if one is None else (one.shape, one.stride()) for one in given)
    autocast = torch.is_autocast_enabled(query.device.type)
    key = (query.dtype, query.device, torch.is_grad_enabled(), autocast, *call[2:])
    found: tuple[Tensor, Tensor] = compiled(function, circumstances, key)(query, memory, parameters, call)
    return found


def compiled_work(problem: Problem, *, kept: int) -> Work:
    """The counts of compiled equations that keep the tensor inside the tanh `kept` times."""
    least = _operator.work(problem)
    training = problem["mode"] == "training"
    wide = _operator.elements(problem) * _operator.element_bytes(problem)
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
