"""The activations as operators that torch.compile records: the launches of `pointwise`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..runtime.torch_operators import Backward, filled, torch_operator
from .launch import INPUT, OUTPUT, dense, has_bits, launch_backward, launch_forward
from .triton_pointwise import pointwise_backward_kernel, pointwise_forward_kernel


class _Call(NamedTuple):
    x: Tensor
    activation: str
    keep: str


class _Results(NamedTuple):
    y: Tensor
    bits: Tensor  # uint8 [ceil(elements / 8)], or absent


class _Gradient(NamedTuple):
    dy: Tensor
    kept: Tensor | None
    bits: Tensor | None
    strides: list[int]  # of x, in whose order of memory the bits are
    activation: str
    output: bool


class _Dx(NamedTuple):
    dx: Tensor


def _memory(call: _Call) -> _Results:
    octets = -(-call.x.numel() // 8) if has_bits(call.activation, call.keep) else 0
    return _Results(torch.empty_like(call.x), call.x.new_empty(octets, dtype=torch.uint8))


def _fill(call: _Call, found: _Results) -> None:
    bits = found.bits if has_bits(call.activation, call.keep) else None
    launch_forward(dense(call.x), found.y, bits, call.activation)


def _gradient_memory(call: _Gradient) -> _Dx:
    return _Dx(call.dy.new_empty_strided(call.dy.shape, call.strides))


def _fill_gradient(call: _Gradient, found: _Dx) -> None:
    def in_order(one: Tensor | None) -> Tensor | None:
        alike = one is None or one.stride() == found.dx.stride()
        return one if alike else torch.empty_like(found.dx).copy_(one)  # type: ignore[arg-type]

    dy, kept = in_order(call.dy), in_order(call.kept)
    assert dy is not None
    launch_backward(dy, kept, call.bits, found.dx, call.activation, output=call.output)


activation_backward = torch_operator(
    "activation_backward", _Gradient, _Dx, filled(_gradient_memory, _fill_gradient),
    kernels=(pointwise_backward_kernel,),
)  # fmt: skip


def _keep(ctx: Any, call: _Call, found: _Results) -> None:
    bits = found.bits if has_bits(call.activation, call.keep) else None
    ctx.mark_non_differentiable(found.bits)
    ctx.save_for_backward({INPUT: call.x, OUTPUT: found.y}.get(call.keep), bits)
    ctx.activation, ctx.output, ctx.strides = call.activation, call.keep == OUTPUT, found.y.stride()


def _gradients(ctx: Any, dy: Tensor | None, _bits: Tensor | None) -> Mapping[str, Tensor | None]:
    if dy is None:
        return {}
    kept, bits = ctx.saved_tensors
    return {"x": activation_backward(dy, kept, bits, ctx.strides, ctx.activation, ctx.output)}


activation = torch_operator(
    "activation", _Call, _Results, filled(_memory, _fill),
    backward=Backward(_keep, _gradients), kernels=(pointwise_forward_kernel,),
)  # fmt: skip


def activated(x: Tensor, kind: str, keep: str) -> Tensor:
    """y of x, any shape, as one node of a graph."""
    y: Tensor = activation(x, kind, keep)[0]
    return y
