"""Layers whose backward pass autograd makes, as operators of torch.library that compute them once more.

An operator does not know what autograd keeps, and a compiler that looks inside unrolls the loop over time.
So the operator keeps its arguments alone, and backward runs forward again, with autograd, before it goes
back: a forward pass more, for a graph that is as long with a thousand steps as with one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..runtime.autograd import recorded
from ..runtime.passes import Gradients, Made, Passes, Saved, TwoPassLayer
from .layer import LayerFunction, States, Weights


class Call(NamedTuple):
    """Arguments of a layer."""

    x: Tensor  # [T, B, I]
    weights: list[Tensor]  # those of the fields of `Weights` that are there, of each direction
    h: Tensor  # [D, B, P]
    c: Tensor | None  # [D, B, H]
    lengths: Tensor | None  # int32 [B]
    present: list[bool]  # fields of `Weights` that are there
    function: str  # what computes it, by a name that `runtime.names` knows

    def results(self, layer: LayerFunction) -> tuple[Tensor, ...]:
        """y [T, B, D*P] and the last states."""
        flat, own = iter(self.weights), self.present
        weights = tuple(Weights(*(next(flat) if one else None for one in own)) for _ in self.h)  # type: ignore[arg-type]
        states = (self.h,) if self.c is None else (self.h, self.c)
        y, last = layer(self.x, states, weights, self.lengths)
        return y, *last


class Recomputed:
    """Results of a layer's call in a graph, by an operator that computes it once more backwards.

    Parameters
    ----------
    name : str
        Name of the operator.
    layer_of : callable
        From the name of a function to the layer function.
    waits : bool, optional
        Whether the host waits for the device in it.
    """

    def __init__(self, name: str, layer_of: Callable[[str], LayerFunction], *, waits: bool = False) -> None:
        self._layer_of = layer_of
        passes = Passes(
            self._forward,
            _memory,
            self._backward,
            saved=("x", "weights", "h", "c", "lengths"),
            outputs=lambda call: 2 if call.c is None else 3,
            waits=waits,
        )
        self._layer = TwoPassLayer(name, Call, passes)

    def __call__(
        self,
        function: str,
        x: Tensor,
        states: States,
        weights: tuple[Weights, ...],
        lengths: Tensor | None,
    ) -> tuple[Tensor, States]:
        """Results of the layer function; all directions have the same fields."""
        h, c = states if len(states) == 2 else (states[0], None)
        flat = [tensor for own in weights for tensor in own if tensor is not None]
        present = [one is not None for one in weights[0]]
        found = self._layer(Call(x, flat, h, c, lengths, present, function))
        return found[0], found[1:]

    def _forward(self, call: Call, _needs: Call) -> Made:
        return Made(tuple(one.contiguous() for one in call.results(self._layer_of(call.function))))

    def _backward(self, saved: Saved, upstream: Gradients, needs: Call) -> dict[str, Any]:
        call = saved.call
        with recorded():
            x, h, c, *weights = (
                None if one is None else one.detach().requires_grad_(bool(wanted))
                for one, wanted in (
                    (call.x, needs.x), (call.h, needs.h), (call.c, needs.c),
                    *zip(call.weights, needs.weights, strict=True),
                )
            )  # fmt: skip
            outputs = call._replace(x=x, h=h, c=c, weights=weights).results(self._layer_of(call.function))
            given = [one is not None for one in upstream]
            leaves = [one for one in (x, h, c, *weights) if one is not None and one.requires_grad]
            found = iter(
                torch.autograd.grad(
                    tuple(compress(outputs, given)), leaves, tuple(compress(upstream, given)),
                    allow_unused=True, materialize_grads=True,
                )
            )  # fmt: skip
        wanted = [next(found) if one else None for one in (needs.x, needs.h, needs.c, *needs.weights)]
        return dict(zip("xhc", wanted, strict=False)) | {"weights": wanted[3:]}


def _memory(call: Call, _needs: Call) -> Made:
    (seq, batch, _), (directions, _, size), new = call.x.shape, call.h.shape, call.x.new_empty
    last = (new(one.shape) for one in (call.h, call.c) if one is not None)
    return Made((new(seq, batch, directions * size), *last))
