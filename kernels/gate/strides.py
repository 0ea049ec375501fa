"""Arguments and gradients of outputs as views of other memory: what real networks hand a layer."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from ..contract import Inputs, Problem
from .runs import Runs, map_tensors, real

# equal numbers of so many rows can be added up in 16 bits: of hundreds torch's own norms on a CPU cannot
FEW = 32


class StridedRuns(Runs):
    """Runs whose arguments and gradients of outputs have strides of their own.

    Arguments are `scattered` in memory, and every other one is the same for all of the batch, as a learned
    state is; so is the first output's gradient along a short axis, as that of a mean is, and the others' are
    scattered. Integers of a packed sequence are left alone, and so are arguments from the `first` on: cuDNN's
    recurrent layers, for example, take no states with strides.
    """

    def __init__(
        self, problem: Problem, torch_device: str, seed: int, inputs: Inputs, first: int | None = None
    ) -> None:
        values, places = problem.as_dict, count()
        self._batch: Any = values.get("batch", values.get("rows"))
        self._left_alone = first

        def alike(tensor: Tensor) -> Tensor:
            """The tensor as an expanded view can hold it: the first place along the axis in all places."""
            axis = self._expanded(tensor, next(places))
            return tensor if axis is None else _first(tensor, axis).contiguous()

        args = map_tensors(alike, inputs.args)
        super().__init__(problem, torch_device, seed, replace(inputs, args=args))

    def laid_out(self, argument: Tensor, place: int) -> Tensor:
        """The same values at other places of memory."""
        if self._is_left_alone(place) or (not real(argument) and self.problem.as_dict.get("packed")):
            return argument
        axis = self._expanded(argument, place)
        return scattered(argument) if axis is None else _first(scattered(argument), axis)

    def upstream(self, weight: Tensor, place: int) -> Tensor:
        """A gradient that is the same along one axis, or has other strides than the output."""
        if place == 0 and weight.dim() == 1:
            return _first(weight, 0)
        axes = [axis for axis, size in enumerate(weight.shape[:-1]) if 1 < size <= FEW]
        return _first(weight, axes[0]) if place == 0 and axes else scattered(weight)

    def _is_left_alone(self, place: int) -> bool:
        return self._left_alone is not None and place >= self._left_alone

    def _expanded(self, argument: Tensor, place: int) -> int | None:
        """The axis of the batch, of every other argument, where it is plain which one that is."""
        if self._is_left_alone(place):
            return None
        axes = [axis for axis, size in enumerate(argument.shape[:-1]) if size == self._batch != 1]
        return axes[0] if place % 2 and real(argument) and len(axes) == 1 else None


def scattered(tensor: Tensor) -> Tensor:
    """The same values with a stride of two along the last axis and the other axes in reversed order."""
    if not tensor.dim():
        return tensor
    leading = tensor.shape[:-1]
    wide = torch.zeros(*reversed(leading), 2 * tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)
    view = wide.permute(*reversed(range(len(leading))), len(leading))[..., ::2]
    return view.copy_(tensor)


def _first(tensor: Tensor, axis: int) -> Tensor:
    """The first place along an axis in all of its places."""
    return tensor.narrow(axis, 0, 1).expand_as(tensor) if tensor.size(axis) else tensor
