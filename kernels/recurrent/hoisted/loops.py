"""Shared parts of the time loops of `hoisted`: layouts, and the way of h's gradient back through the steps.

Batch-major: the gates of a step are [B, G*H] and its state [B, H]. Batch-minor: they are [G*H, B] and
[H, B], so that each gate is one block of memory. Below, [..] is one of the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..layer import States, Weights
from ..loops import step_order, valid_steps

# elements of a step's factors that are worked out at once: on a CPU they should stay in a core's cache
# until the loop uses them; on a GPU few large launches matter more
CHUNK_ELEMENTS = {"cpu": 2**18, "cuda": 2**24}


class Layout(NamedTuple):
    """Order of the axes: batch-major, or batch-minor with `minor`."""

    minor: bool

    def blocks(self, gates: Tensor, count: int) -> tuple[Tensor, ...]:
        """The gates one by one."""
        return gates.chunk(count, self.axis)

    def split(self, gates: Tensor, count: int) -> Tensor:
        """The gates with an axis of their own before the features, or before these and the batch."""
        return torch.unflatten(gates, self.axis, (count, -1))

    @property
    def axis(self) -> int:
        """Axis of the features, counted from the end."""
        return -2 if self.minor else -1

    def features(self, vector: Tensor) -> Tensor:
        """A vector over features [.., H] as it multiplies a state."""
        return vector.unsqueeze(-1) if self.minor else vector

    def turned(self, tensor: Tensor) -> Tensor:
        """A view of the tensor in this layout in place of torch's, or back."""
        return tensor.transpose(-1, -2) if self.minor else tensor

    def factor(self, matrix: Tensor) -> Tensor:
        """A matrix [K, N] as `operands` takes it: a view."""
        return matrix.t() if self.minor else matrix

    def operands(self, rows: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        """The two sides of the product of a step's rows [..] of K features with a matrix [K, N]."""
        return (factor, rows) if self.minor else (rows, factor)


class Direction(NamedTuple):
    """Weights, layout, order and lengths that a time loop runs with."""

    weights: Weights
    layout: Layout
    reverse: bool
    lengths: Tensor | None  # [B]

    def order(self, seq: int) -> range:
        """The time steps in the order in which they are computed."""
        return step_order(seq, self.reverse)

    def missing(self, seq: int) -> Tensor | None:
        """Mask of the steps that sequences lack: bool [T, ..] with one feature; None when all have all."""
        if self.lengths is None:
            return None
        return self.layout.turned(valid_steps(self.lengths, seq).logical_not_())


class Scan(NamedTuple):
    """Results of a forward loop."""

    h_all: Tensor  # [T, ..], in the order of time
    last: States
    gates: tuple[Tensor, ...] = ()  # for backward: what can be rebuilt from h, and from c
    c_all: Tensor | None = None  # [T+1, ..], in the order of time, c_0 at the loop's start


class Upstream(NamedTuple):
    """Gradients of the outputs, in the layout of the loop; None where an output is unused."""

    y: Tensor | None  # [T, ..]
    last: tuple[Tensor | None, ...]


class LoopGradients(NamedTuple):
    """Gradients that a backward loop computes, in its layout."""

    gates: Tensor  # of the projected inputs, [T, ..]
    recurrent: Tensor  # of h_{t-1} W_hh^T, [T, ..]: the same tensor for all cells but gru
    states: States  # of the initial states
    own: tuple[Tensor | None, Tensor | None] = (None, None)  # of the projection and the peepholes


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of pointwise arithmetic and of carried states: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def chunks(order: range, step: Tensor) -> Iterator[range]:
    """The steps in spans, given the gates of one."""
    span = max(1, CHUNK_ELEMENTS.get(step.device.type, 2**20) // max(1, step.numel()))
    for start in range(0, len(order), span):
        yield order[start : start + span]


class Flow:
    """The gradient of h on its way back: `total` [..] of the present step, at least float32."""

    def __init__(self, upstream: Upstream, shape: tuple[int, ...], direction: Direction) -> None:
        """shape: [T, ..] of all h."""
        like, self._layout = direction.weights.w_hh, direction.layout
        self._factor = self._layout.factor(like)
        self._none = like.new_zeros(()).expand(shape[1:])
        self._rows = [self._none] * shape[0] if upstream.y is None else upstream.y.unbind(0)
        self.total = start(upstream.last[0], shape[1:], like)
        self._narrow = torch.empty(shape[1:], dtype=like.dtype, device=like.device)
        self._wide = self.total.dtype != like.dtype
        self.total.add_(self._rows[direction.order(shape[0])[-1]])

    def back(self, t: int | None, recurrent: Tensor, carry: Tensor | None = None) -> None:
        """To step t, or to the initial state: through the product, and `carry` of it past the product."""
        row = self._none if t is None else self._rows[t]
        operands = self._layout.operands(recurrent, self._factor)
        if carry is None:
            torch.addmm(row, *operands, out=self._narrow if self._wide else self.total)
            if self._wide:
                self.total.copy_(self._narrow)
        elif self._wide:
            self.total.mul_(carry).add_(row).add_(torch.mm(*operands, out=self._narrow))
        else:
            torch.addcmul(row, self.total, carry, out=self.total).addmm_(*operands)


def start(gradient: Tensor | None, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A copy of the gradient of a last state, to go on with in place."""
    dtype = wide_dtype(like.dtype)
    if gradient is None:
        return torch.zeros(shape, dtype=dtype, device=like.device)
    return torch.empty(shape, dtype=dtype, device=like.device).copy_(gradient)
