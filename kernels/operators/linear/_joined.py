"""Several linear layers of one input as one product: query, key and value of attention.

    y_i = x W_i^T + b_i        # all i at once: x [..., K], W_i [N_i, K], b_i [N_i] or none

Products with few columns leave multiprocessors idle, above all those of the weights' gradients, and the
gradients that each gives x would be summed up one by one. Weights are laid one behind the other in every
pass, which moves no more than they do; parameters stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from ...runtime.joint_tensors import apart, whole


def joined(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None) -> tuple[Tensor, ...]:
    """y_i [..., N_i] of x [..., K], as `linear` gives each, and cast as autocast does.

    x has two dimensions or more. Rows of y_i lie apart, by sum N_i elements. All have one backward together:
    it gives None for layers whose y takes no part, and may be differentiated. Raises RuntimeError for shapes
    or dtypes that do not fit.
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
        ctx.set_materialize_grads(False)
        # as torch: a weight that nothing is computed with in backward may be changed until then
        ctx.save_for_backward(x, *(weights if ctx.needs_input_grad[0] else ()))
        ctx.count, ctx.dtype = count, weights[0].dtype
        y = linear(x, _side_by_side(weights, x.dtype), _side_by_side(biases, x.dtype) if biases else None)
        parts = torch.split(y, [len(one) for one in weights], -1)
        return tuple(apart(one) for one in parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """One product for x, one for the weights, and one sum for the biases that have an upstream gradient
        and are asked for.
        """
        x, *weights = ctx.saved_tensors
        last = 2 + ctx.count
        found: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
        upstream = {place: one for place, one in enumerate(gradients) if one is not None}
        if upstream and ctx.needs_input_grad[0]:
            matrix = _side_by_side([weights[place] for place in upstream], x.dtype)
            found[0] = (_rows(upstream.values()) @ matrix).view_as(x)
        for first, of_weights in ((2, True), (last, False)):
            needed = ctx.needs_input_grad[first : first + ctx.count]
            own = {
                place: upstream[place] for place, asked in enumerate(needed) if asked and place in upstream
            }
            if own:
                dy = _rows(own.values())
                every = dy.t() @ x.flatten(0, -2) if of_weights else dy.sum(0)
                parts = torch.split(every, [one.size(-1) for one in own.values()])
                for place, part in zip(own, parts, strict=True):
                    # in memory of its own: whoever keeps one gradient does not keep all
                    found[first + place] = part.to(ctx.dtype, copy=True)
        return tuple(found)


def _rows(gradients: Iterable[Tensor]) -> Tensor:
    """Gradients [..., N_i] beside each other, [M, sum N_i]; where they are differentiated, as a copy."""
    given = list(gradients)
    dy = torch.cat(given, -1) if torch.is_grad_enabled() else whole(given)
    return dy.flatten(0, -2)


def _side_by_side(parameters: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat([one.to(dtype) for one in parameters])
