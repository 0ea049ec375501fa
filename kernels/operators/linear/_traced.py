"""The fused layer as operators that torch.compile records: the products and launches of `_fused`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...runtime.dropout import draw_seed
from ...runtime.names import named
from ...runtime.torch_operators import Backward, Contents, absent, torch_operator
from ._passes import Engine, Options, forward_pass, parameter_and_input_gradients


class _Call(NamedTuple):
    x: Tensor  # [M, K]
    weight: Tensor  # [N, K]
    bias: Tensor | None  # [N]
    residual: Tensor | None  # [M, N]
    seed: Tensor | None  # int64 [1] where elements are dropped
    engine: str
    activation: str
    p: float
    needs_z: bool
    dtype: torch.dtype  # of y
    keep: bool

    @property
    def options(self) -> Options:
        """Options of the call, with the functions that its engine names."""
        return Options(_engine(self.engine), self.activation, self.p, self.needs_z, self.dtype)


class _Results(NamedTuple):
    y: Tensor  # [M, N]
    z: Tensor  # [M, N], or absent


class _Upstream(NamedTuple):
    dy: Tensor
    x: Tensor
    weight: Tensor
    kept: Tensor | None
    seed: Tensor | None
    engine: str
    activation: str
    p: float
    for_x: bool
    for_weight: bool
    for_bias: bool


class _Gradients(NamedTuple):
    dx: Tensor
    dw: Tensor
    db: Tensor


def _engine(names: str) -> Engine:
    """The functions of an engine by the names that `Engine.names` gives them."""
    return Engine(*map(named, names.split()))


def _memory(call: _Call) -> _Results:
    shape = call.x.size(0), call.weight.size(0)
    y = call.x.new_empty(shape, dtype=call.dtype)
    return _Results(y, call.x.new_empty(shape) if call.keep and call.needs_z else absent(call.x))


def _compute(call: _Call) -> _Results:
    y, kept = forward_pass(call.options, call[:4], call.seed, keep=call.keep)
    z = kept if call.needs_z and kept is not None else absent(call.x)
    return _Results(y.contiguous(), z)


def _gradient_memory(call: _Upstream) -> _Gradients:
    (rows, inner), outer = call.x.shape, call.weight.size(0)
    return _Gradients(
        call.x.new_empty((rows, inner) if call.for_x else 0),
        call.x.new_empty((outer, inner) if call.for_weight else 0),
        call.x.new_empty(outer if call.for_bias else 0),
    )


def _compute_gradients(call: _Upstream) -> _Gradients:
    options = Options(
        _engine(call.engine),
        call.activation,
        call.p,
        call.kept is not None,
        call.dy.dtype,
    )
    found = parameter_and_input_gradients(
        options, call.dy, (call.x, call.weight, call.kept, call.seed),
        (call.for_x, call.for_weight, call.for_bias),
    )  # fmt: skip
    return _Gradients(*(absent(call.x) if one is None else one.contiguous() for one in found))


# opaque to the compiler, as products that cuBLAS computes or that are chosen by what was tuned are
linear_backward = torch_operator(
    "linear_backward", _Upstream, _Gradients, Contents(_gradient_memory, _compute_gradients)
)


def _keep(ctx: Any, call: _Call, found: _Results) -> None:
    from_y = call.activation == "relu" and not call.needs_z
    ctx.mark_non_differentiable(found.z)
    ctx.save_for_backward(
        call.x, call.weight, found.y if from_y else found.z if call.needs_z else None, call.seed
    )
    ctx.engine, ctx.activation, ctx.p = call.engine, call.activation, call.p
    ctx.residual_dtype = None if call.residual is None else call.residual.dtype


def _gradients(ctx: Any, dy: Tensor | None, _z: Tensor | None) -> Mapping[str, Tensor | None]:
    if dy is None:
        return {}
    for_x, for_weight, for_bias, for_residual = ctx.needs_input_grad[:4]
    found: dict[str, Tensor | None] = {"residual": dy.to(ctx.residual_dtype) if for_residual else None}
    if for_x or for_weight or for_bias:
        dx, dw, db = linear_backward(
            dy, *ctx.saved_tensors, ctx.engine, ctx.activation, ctx.p, for_x, for_weight, for_bias
        )
        wanted = (("x", dx, for_x), ("weight", dw, for_weight), ("bias", db, for_bias))
        found |= {name: one if asked else None for name, one, asked in wanted}
    return found


operator = torch_operator(
    "linear", _Call, _Results, Contents(_memory, _compute), backward=Backward(_keep, _gradients)
)


def layer(engine: str, options: Options, given: tuple[Tensor | None, ...], *, keep: bool) -> Tensor:
    """y [M, N] of x [M, K], W [N, K], bias and residual, as one node of a graph, and one for the seed."""
    x = given[0]
    assert x is not None
    seed = draw_seed(x.device) if options.p else None
    y: Tensor = operator(*given, seed, engine, *options[1:], keep)[0]
    return y
