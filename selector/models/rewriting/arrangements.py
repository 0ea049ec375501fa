"""Snapshots of a model's classes and attributes, between which it can be switched."""

from __future__ import annotations

from torch import nn

from . import attention_interface

WRAPPERS = ("torch.nn.parallel", "torch.distributed")  # which count their steps, and are never rewritten


class Arrangement:
    """Snapshot of how a model computes: classes, attributes and submodules of all modules, with replayed
    graphs and `Module.compile`.

    `name` says what it is. Parameters and buffers are not copied: those that there are then stay in use.
    """

    def __init__(self, name: str, model: nn.Module) -> None:
        self.name = name
        self._parts = [
            (part, type(part), dict(part.__dict__), dict(part._modules))
            for part in model.modules()
            if not type(part).__module__.startswith(WRAPPERS)
        ]
        self._attention = attention_interface.names(model)

    def apply(self) -> None:
        """Switch the model to this snapshot."""
        for part, kind, attributes, parts in self._parts:
            if type(part) is not kind:
                part.__class__ = kind
            members = part.__dict__
            for name in members.keys() - attributes.keys():
                del members[name]
            members.update(attributes)
            if part._modules != parts:
                part._modules.clear()
                part._modules.update(parts)
        for holder, name in self._attention:
            attention_interface.rename(holder, name)
