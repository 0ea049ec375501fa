"""State of a module except tensor values; captured graphs are valid only while it is unchanged."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
CONSTANTS = (bool, int, float, str)


def hooked(module: nn.Module) -> bool:
    """Whether a module has forward or backward hooks."""
    return any(getattr(module, name) for name in HOOKS)


class ModuleState:
    """Snapshot of a module: submodules, addresses of parameters and buffers, plain attributes."""

    def __init__(self, module: nn.Module) -> None:
        parts = list(module.modules())
        self._inner = [part for part in parts if part is not module]
        held: list[dict[str, Any]] = [
            members for part in parts for members in (part._modules, part._parameters, part._buffers)
        ]
        self._counts = [(members, len(members)) for members in held]
        self._members = [(members, name, one) for members in held for name, one in members.items()]
        self._places = [
            (one, one.data_ptr(), one.requires_grad) for _, _, one in self._members if isinstance(one, Tensor)
        ]
        self._constants = [
            (part.__dict__, name, value)
            for part in parts
            for name, value in part.__dict__.items()
            if type(value) in CONSTANTS
        ]

    def holds(self) -> bool:
        """Whether the module still matches the snapshot, in the same modes, and has no hooks inside."""
        return (
            all(len(members) == count for members, count in self._counts)
            and all(members.get(name) is one for members, name, one in self._members)
            and all(one.data_ptr() == at and one.requires_grad is has for one, at, has in self._places)
            and all(holder.get(name) == value for holder, name, value in self._constants)
            and not any(map(hooked, self._inner))
        )


class StaticMemory:
    """Memory that graphs overwrite, with the number of references that each storage had at capture."""

    def __init__(self, tensors: list[Tensor]) -> None:
        storages = {one.untyped_storage()._cdata: one.untyped_storage() for one in tensors}
        self._storages = list(storages.values())
        self._before = self._counts()

    def elsewhere(self) -> bool:
        """Whether a tensor, view or array outside the graphs refers to the memory."""
        return self._counts() != self._before

    def _counts(self) -> list[int]:
        return [torch._C._storage_Use_Count(one._cdata) for one in self._storages]
