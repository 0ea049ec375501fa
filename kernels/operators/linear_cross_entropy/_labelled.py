"""Losses of the rows that have a label, which the host has to count, in a graph of torch.compile.

Outside of one, rows are picked by operations of torch's. In a graph, where no size may follow from values,
one operator picks them, and keeps what belongs to rows for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...runtime.passes import Gradients, Made, Passes, Saved, TwoPassLayer
from . import IGNORED
from ._module import Call, LossFunction, plain


def loss_of_labelled(function: LossFunction, layer: TwoPassLayer, call: Call) -> Tensor:
    """The mean loss [] of the rows that have a label, by a function of rows; in graphs by a layer."""
    if torch.compiler.is_compiling():
        return layer(call)[0]
    rows = _labelled(call, _places(call))
    if len(rows.labels) == 0:
        return plain(*rows)  # the mean of nothing: NaN, and no gradient
    return function(*rows)


def layer_of(name: str, rows: TwoPassLayer, call_of: Callable[..., Any]) -> TwoPassLayer:
    """The layer around one of rows that all have a label, whose calls `call_of` makes."""

    def memory(call: Call, needs: Call) -> Made:
        return rows.passes.memory(call_of(*call), needs)

    def forward(call: Call, needs: Call) -> Made:
        outputs, kept = memory(call, needs)
        places = _places(call)
        if len(places) == 0:
            # no gradient, of one label, which can be divided by
            nothing = tuple(None if one is None else one.fill_(0 if one.dim() else 1) for one in kept)
            return Made((outputs[0].fill_(torch.nan),), nothing)
        made = rows.passes.forward(call_of(*_labelled(call, places)), needs)
        return Made(made.outputs, tuple(map(_in_place(places), made.kept, kept)))

    def backward(saved: Saved, upstream: Gradients, needs: Call) -> Any:
        call: Call = saved.call
        if not rows.passes.saved:
            return rows.passes.backward(saved, upstream, needs)
        places = _places(call)
        if len(places) == 0:
            return {}
        kept = tuple(one[places] if one.dim() else one for one in saved.kept)
        own = Saved(call_of(*_labelled(call, places)), saved.outputs, kept)
        found = dict(rows.passes.backward(own, upstream, needs))
        return {**found, "x": _in_place(places)(found["x"], torch.empty_like(call.x))}

    saved = rows.passes.saved
    return TwoPassLayer(name, Call, Passes(forward, memory, backward, saved, waits=True))


def _places(call: Call) -> Tensor:
    """Rows that have a label, [M]."""
    return (call.labels != IGNORED).nonzero().squeeze(1)


def _labelled(call: Call, places: Tensor) -> Call:
    return call._replace(x=call.x.index_select(0, places), labels=call.labels.index_select(0, places))


def _in_place(places: Tensor) -> Callable[[Tensor | None, Tensor | None], Tensor | None]:
    """Function that puts what belongs to labelled rows into memory for all rows; it leaves the rest."""

    def put(found: Tensor | None, memory: Tensor | None) -> Tensor | None:
        if found is None or memory is None or found.shape == memory.shape:
            return found
        return memory.zero_().index_copy_(0, places, found)

    return put
