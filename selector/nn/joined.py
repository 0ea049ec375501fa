"""Linear layers that are called with the same input one after the other, as one product in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kernel_selector.kernels.linear._joined import joined

GROUP = "_joined_with"  # the attribute of a layer that has its group


class Group:
    """Layers that are computed together. Whichever is called first computes all of them; the others' outputs
    are kept until they are called with the same tensor, or any of them with another.
    """

    def __init__(self, members: Sequence[nn.Linear]) -> None:
        self.members = tuple(members)
        self._x: Tensor | None = None
        self._version = 0
        self._held: dict[int, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"members": self.members, "_x": None, "_version": 0, "_held": {}}

    def part(self, member: nn.Linear, x: Tensor) -> Tensor | None:
        """What a member gives for x, or None where it is to compute that by itself."""
        place = next((place for place, one in enumerate(self.members) if one is member), None)
        if place is None or not _trains(x):  # a replica of a member is none
            return None
        if any(
            "weight" not in one._parameters for one in self.members
        ):  # computed before each call of its own
            return None
        if x is not self._x or x._version != self._version or place not in self._held:
            weights = [one.weight for one in self.members]
            biases = [one.bias for one in self.members if one.bias is not None]
            self._held = dict(enumerate(joined(x, weights, biases)))
            self._x, self._version = x, x._version
        y = self._held.pop(place)
        if not self._held:
            self._x = None
        return y


class JoinedLinear(nn.Linear):
    """As `torch.nn.Linear`; its product is part of its group's wherever gradients may follow."""

    def forward(self, input: Tensor) -> Tensor:
        """x [..., K] to y [..., N]."""
        y: Tensor | None = getattr(self, GROUP).part(self, input)
        return super().forward(input) if y is None else y


def _trains(x: Tensor) -> bool:
    """Whether a call may be differentiated, and is no transform's or compiler's to see through."""
    if not torch.is_grad_enabled() or x.is_nested or not x.dim():
        return False
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())
