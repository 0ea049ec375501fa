"""One layer with its input projection hoisted out of the time loop, and a backward pass by hand."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .gradients import Upstream, backward_scan, parameter_gradients
from .layer import LayerFunction, States, Weights
from .loops import each_direction
from .scan import Scan, gate_slices, project, scan


class Options(NamedTuple):
    """How a layer is run."""

    reverse: bool  # from the last time step to the first
    minor: bool  # batch-minor layout, see `scan`
    recompute: bool  # rebuild the gates in backward instead of keeping them


def hoisted_layer(*, minor: bool = False, recompute: bool = False) -> LayerFunction:
    """The layer function with these options."""
    return each_direction(partial(_layer, minor=minor, recompute=recompute))


def _layer(
    x: Tensor,
    states: States,
    weights: Weights,
    reverse: bool,
    lengths: Tensor | None,
    *,
    minor: bool,
    recompute: bool,
) -> tuple[Tensor, States]:
    if lengths is not None or weights.w_hr is not None or weights.w_peephole is not None:
        raise TypeError("hoisted: lengths, projections and peepholes are not supported")
    h_0, c_0 = states
    options = Options(reverse, minor, recompute)
    given = (x, h_0, c_0, *weights[:4])
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in given):
        y, *last = _Hoisted.apply(*given, options)  # type: ignore[no-untyped-call]
    else:
        y, *last = _results(_forward(x, h_0, c_0, weights, options, keep=False)[1], options)
    return y, tuple(last)


def _bias(weights: Weights) -> Tensor | None:
    return None if weights.b_ih is None or weights.b_hh is None else weights.b_ih + weights.b_hh


def _forward(
    x: Tensor, h_0: Tensor, c_0: Tensor, weights: Weights, options: Options, keep: bool
) -> tuple[Tensor, Scan]:
    """The gates, activated with `keep`, and what the loop leaves."""
    gates = project(x, weights.w_ih, _bias(weights), options.minor)
    if options.minor:
        h_0, c_0 = h_0.t(), c_0.t()
    done = scan(gates, h_0, c_0, weights.w_hh, reverse=options.reverse, minor=options.minor, keep=keep)
    return gates, done


def _results(done: Scan, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """y, h_T and c_T in the layout of torch, none of them a view of another."""
    y, c_last = done.h_all, done.c_last
    if options.minor:
        y, c_last = y.transpose(1, 2).contiguous(), c_last.t()
    h_last = y[0 if options.reverse else -1].clone()
    return y, h_last, c_last.clone(memory_format=torch.contiguous_format)


class _Hoisted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, h_0: Tensor, c_0: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        weights, options = Weights(*rest[:4]), rest[4]
        gates, done = _forward(x, h_0, c_0, weights, options, keep=True)
        y, h_last, c_last = _results(done, options)
        ctx.options = options
        ctx.set_materialize_grads(False)
        kept = None if options.recompute else gates
        ctx.save_for_backward(x, h_0, *weights, y, done.c_all, kept)
        return y, h_last, c_last

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            # with create_graph: a second derivative must raise, also where the upstream is a constant
            upstream = tuple(None if d is None else d.detach().requires_grad_() for d in upstream)
        gradients: tuple[Tensor | None, ...] = once_differentiable(_backward)(ctx, *upstream)
        return gradients


def _backward(ctx: Any, dy: Tensor | None, dh: Tensor | None, dc: Tensor | None) -> tuple[Tensor | None, ...]:
    x, h_0, *parameters, y, c_all, gates = ctx.saved_tensors
    weights, options = Weights(*parameters), ctx.options
    needs_x, _, _, *needs = ctx.needs_input_grad[:7]
    h_before = _shifted(y, h_0, options.reverse)
    if gates is None:
        gates = _gates_again(x, h_before, weights)
    upstream = Upstream(dy, dh, dc)
    if options.minor:
        upstream = Upstream(*(None if d is None else d.transpose(-1, -2) for d in upstream))
    d_gates, dh_0, dc_0 = backward_scan(
        gates, c_all, weights.w_hh, upstream, reverse=options.reverse, minor=options.minor
    )
    if options.minor:
        d_gates, dh_0, dc_0 = d_gates.transpose(1, 2).contiguous(), dh_0.t(), dc_0.t()
    dx = d_gates @ weights.w_ih if needs_x else None
    wanted = (needs[0], needs[1], any(needs[2:]))
    d_w_ih, d_w_hh, d_bias = parameter_gradients(d_gates, x, h_before, wanted)
    return dx, dh_0, dc_0, d_w_ih, d_w_hh, d_bias, d_bias, None


def _shifted(y: Tensor, h_0: Tensor, reverse: bool) -> Tensor:
    """h_{t-1} of every step, in the order of time: [T, B, H]."""
    first = h_0.unsqueeze(0)
    return torch.cat((y[1:], first) if reverse else (first, y[:-1]))


def _gates_again(x: Tensor, h_before: Tensor, weights: Weights) -> Tensor:
    """The activated gates [T, B, 4H] from the states before each step: products over all tokens at once."""
    gates = project(x, weights.w_ih, _bias(weights), False)
    gates.flatten(0, 1).addmm_(h_before.flatten(0, 1), weights.w_hh.t())
    i, f, g, o = gate_slices(gates, False)
    for gate in (i, f, o):
        gate.sigmoid_()
    g.tanh_()
    return gates
