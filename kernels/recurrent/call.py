"""A layer's call where all directions are computed at once: for operators of torch.library, and outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from ..runtime.passes import Gradients, Made, Passes, Saved, TwoPassLayer
from .layer import States, Weights


class Call(NamedTuple):
    """Arguments of a layer without projections and peepholes."""

    x: Tensor  # [T, B, I]
    weights: list[Tensor]  # W_ih, W_hh and, with `bias`, b_ih, b_hh of each direction
    h: Tensor  # [D, B, H]
    c: Tensor | None  # [D, B, H]
    lengths: Tensor | None  # int32 [B]
    cell: str
    bias: bool
    engine: str  # what computes it, by a name that `runtime.names` knows, or empty

    @property
    def directions(self) -> tuple[Weights, ...]:
        """Weights of each direction; also what is known of each, in a call with that in its place."""
        flat, own = self.weights, 4 if self.bias else 2
        return tuple(Weights(*flat[first : first + own]) for first in range(0, len(flat), own))

    @property
    def states(self) -> States:
        """Initial states."""
        return (self.h,) if self.c is None else (self.h, self.c)


def two_pass_layer(
    name: str,
    forward: Callable[[Call, Call], Made],
    memory: Callable[[Call, Call], Made],
    backward: Callable[[Saved, Gradients, Call], dict[str, Any]],
) -> TwoPassLayer:
    """The layer of passes that look at all arguments backwards, and at no output."""
    passes = Passes(
        forward,
        memory,
        backward,
        saved=("x", "weights", "h", "c", "lengths"),
        outputs=lambda call: 1 + len(call.states),
    )
    return TwoPassLayer(name, Call, passes)


def keeps(needs: Call) -> bool:
    """Whether anything wants a gradient."""
    return bool(needs.x or needs.h or needs.c or True in needs.weights)


def run(
    layer: TwoPassLayer,
    names: tuple[str, str],
    x: Tensor,
    states: States,
    weights: tuple[Weights, ...],
    lengths: Tensor | None,
) -> tuple[Tensor, States]:
    """y [T, B, D*H] and the last states of a layer; `names` are those of the cell and of the engine."""
    cell, engine = names
    h, c = states if len(states) == 2 else (states[0], None)
    flat = [tensor for own in weights for tensor in own[:4] if tensor is not None]
    bias = weights[0].b_ih is not None
    found = layer(Call(x, flat, h, c, lengths, cell, bias, engine))
    return found[0], found[1:]


def gradients(x: Tensor | None, weights: list[Tensor | None], states: States) -> dict[str, Any]:
    """Gradients by field."""
    return {"x": x, "weights": weights} | dict(zip("hc", states, strict=False))
