"""Several linear layers of one input as one product: query, key and value of attention.

    y_i = x W_i^T + b_i        # all i at once: x [..., K], W_i [N_i, K], b_i [N_i] or none

Products with few columns leave multiprocessors idle, above all those of the weights' gradients, and the
gradients that each gives x would be summed up one by one. Weights are laid one behind the other in every
pass, which moves no more than they do; parameters stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..autograd import first_order
from ..parts import apart, whole


def joined(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None) -> tuple[Tensor, ...]:
    """y_i [..., N_i] of x [..., K], as `linear` gives each, and cast as autocast does.

    Their rows lie apart, by sum N_i elements. Raises RuntimeError for shapes or dtypes that do not fit.
    """
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    found: tuple[Tensor, ...] = _Joined.apply(x, len(weights), *weights, *(biases or ()))  # type: ignore[no-untyped-call]
    return found


class _Joined(torch.autograd.Function):
    """x [..., K], weights and biases to one y for each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, *parameters: Tensor) -> tuple[Tensor, ...]:
        """The parts of one product; none is a view of another, so that each may be changed in place."""
        weights, biases = parameters[:count], parameters[count:]
        ctx.save_for_backward(x, *weights)
        ctx.with_bias, ctx.dtype = bool(biases), weights[0].dtype
        y = linear(x, _side_by_side(weights, x.dtype), _side_by_side(biases, x.dtype) if biases else None)
        parts = torch.split(y, [len(one) for one in weights], -1)
        return tuple(apart(one) for one in parts)

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """One product for x, one for all weights, and one sum for all biases."""
        x, *weights = ctx.saved_tensors
        sizes, last = [len(one) for one in weights], 2 + len(weights)
        dy = whole(gradients).flatten(0, -2)  # [M, sum N]
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = (dy @ _side_by_side(weights, x.dtype)).view_as(x)
        if any(ctx.needs_input_grad[2:last]):
            dw = (dy.t() @ x.flatten(0, -2)).to(ctx.dtype)
        if any(ctx.needs_input_grad[last:]):
            db = dy.sum(0).to(ctx.dtype)
        none = (None,) * len(sizes)
        return (
            dx,
            None,
            *(none if dw is None else torch.split(dw, sizes)),
            *((none if db is None else torch.split(db, sizes)) if ctx.with_bias else ()),
        )


def _side_by_side(parameters: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat([one.to(dtype) for one in parameters])
