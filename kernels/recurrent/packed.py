"""Packed sequences in graphs of torch.compile, as operations whose sizes follow from those of tensors.

torch's own functions for it read the lengths on the host, which a tracer cannot.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .layer import States


class Padded(NamedTuple):
    """A packed sequence, the longest first, side by side."""

    x: Tensor  # [T, B, I]
    lengths: Tensor  # int32 [B]
    places: Tensor  # int64 [N], of the N packed steps among T*B

    def packed(self, y: Tensor) -> Tensor:
        """The packed steps [N, ..] of y [T, B, ..]."""
        return y.flatten(0, 1).index_select(0, self.places)


def padded(packed: PackedSequence, states: States | None) -> Padded:
    """A packed sequence with zeros where sequences have no step.

    The number of sequences is that of the states or of the order where they are given, else a value of
    `batch_sizes`, of which a graph knows nothing: a size for itself.
    """
    data, sizes, order, _ = packed
    known = order if states is None else states[0][0]  # [B, ..]
    batch = int(sizes[0]) if known is None else known.size(0)
    torch._assert_async(sizes[0] == batch, "states or indices of a packed sequence for another batch size")
    steps = torch.repeat_interleave(sizes, output_size=data.size(0))
    rows = torch.arange(data.size(0)) - (sizes.cumsum(0) - sizes)[steps]
    places = (steps * batch + rows).to(data.device)
    x = data.new_zeros(sizes.size(0) * batch, data.size(1)).index_copy(0, places, data)
    lengths = (sizes.unsqueeze(1) > torch.arange(batch)).sum(0)
    return Padded(x.view(sizes.size(0), batch, data.size(1)), lengths.to(data.device, torch.int32), places)
