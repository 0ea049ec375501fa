"""Snapshots of a model's classes and attributes, between which it can be switched."""

from __future__ import annotations

from torch import nn

from ...errors import InvalidRequest
from . import attention_interface

SHARDED = (
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
)  # where classes of such weights and parts are
WRAPPERS = ("torch.nn.parallel", "torch.distributed")  # which count their steps, and are never rewritten


def unwrapped(model: nn.Module) -> nn.Module:
    """Model in a wrapper for data parallel training, which calls it; any other model itself.

    Steps of the wrapper itself would wait for those of other processes, which are not as many.
    """
    while isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        model = model.module
    return model


def refuse_sharded(model: nn.Module) -> None:
    """Raise InvalidRequest for a model whose weights are spread over several processes."""
    tensors = ((name, type(one)) for name, one in model.named_parameters())
    parts = ((name or type(part).__name__, type(part)) for name, part in model.named_modules())
    for name, kind in (*tensors, *parts):
        if kind.__module__.startswith(SHARDED):
            raise InvalidRequest(
                f"model is sharded: {name} has weights in several processes, which would try arrangements "
                "for as long as their own clocks say, and wait for each other. Call this on the model itself "
                "on each rank, and shard it then."
            )


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
