"""Arrangements of a model: ways in which it computes the same, between which it can be switched."""

from __future__ import annotations

from torch import nn

from . import attention_interface

WRAPPERS = ("torch.nn.parallel", "torch.distributed")  # which count their steps, and are never rewritten


class Arrangement:
    """How a model computes at the moment when this is taken: the class, the attributes and the parts of each
    of its modules, which is all that a rewriting changes, replayed graphs and `Module.compile` included.

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
        """Let the model compute in this way."""
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
