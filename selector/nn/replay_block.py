"""One block of a model as a pair of CUDA graphs, and which calls these stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Graph(Protocol):
    """What was captured."""

    def replay(self) -> None:
        """Run it on the current stream."""


class Argument(NamedTuple):
    """A tensor of a call, and where the graphs read it."""

    static: Tensor
    chained: bool  # it is what a block before gave, in the graphs' memory
    wants: bool  # its gradient


@dataclass(kw_only=True)
class Block:
    """The graphs of one block, and what their calls and gradients look like.

    `arguments` has the tensors of a call as Argument, and all else as it was; `outputs` has tensors in the
    graphs' memory or None; `given` takes their gradients, None where they have none. `gradients` are those of
    the arguments that want one, then of the parameters.
    """

    module: nn.Module
    place: int  # in its stack
    last: bool
    keywords: tuple[str, ...]
    arguments: tuple[Any, ...]
    outputs: tuple[Tensor | None, ...]
    alone: bool  # the one output is no tuple
    forward: Graph
    given: tuple[Tensor | None, ...] = ()
    gradients: tuple[Tensor | None, ...] = ()
    backward: Graph | None = None

    @cached_property
    def tensors(self) -> list[Argument]:
        """The arguments that are."""
        return [one for one in self.arguments if isinstance(one, Argument)]

    @cached_property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Those that have gradients."""
        return tuple(one for one in self.module.parameters() if one.requires_grad)

    @cached_property
    def returned(self) -> list[tuple[Tensor, Tensor | None]]:
        """The outputs that are tensors, with what takes their gradients."""
        pairs = zip(self.outputs, self.given, strict=True)
        return [(output, given) for output, given in pairs if output is not None]

    @cached_property
    def _weights(self) -> list[tuple[dict[str, nn.Parameter | None], str, nn.Parameter, int, bool]]:
        return [
            (part._parameters, name, one, one.data_ptr(), one.requires_grad)
            for part in self.module.modules()
            for name, one in part._parameters.items()
            if one is not None
        ]

    @cached_property
    def _parts(self) -> list[tuple[nn.Module, bool]]:
        return [(part, part.training) for part in self.module.modules()]

    def remember(self) -> None:
        """The module is now as it was captured."""
        self._weights, self._parts  # noqa: B018  # kept from here on

    def fits(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call is the one that was captured, but for the values of tensors."""
        if tuple(kwargs) != self.keywords:
            return False
        found = tuple(leaves(args, kwargs))
        return len(found) == len(self.arguments) and all(map(_alike, self.arguments, found))

    def unchanged(self) -> bool:
        """Whether the module is as it was captured: parameters where they were, modes, no hooks inside."""
        for held, name, weight, address, trained in self._weights:
            if held.get(name) is not weight:
                return False
            if weight.data_ptr() != address or weight.requires_grad is not trained:
                return False
        for part, training in self._parts:
            if part.training is not training or (part is not self.module and hooked(part)):
                return False
        return True


def leaves(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """The arguments of a call, those of tuples among them one by one."""
    for value in (*args, *kwargs.values()):
        if type(value) is tuple:
            yield from value
        else:
            yield value


def hooked(module: nn.Module) -> bool:
    """Whether anything is called around the module's forward or backward."""
    return any(getattr(module, name) for name in HOOKS)


def _alike(argument: Any, given: Any) -> bool:
    if not isinstance(argument, Argument):
        return argument is given or (type(argument) is type(given) and bool(argument == given))
    if not isinstance(given, Tensor):
        return False
    static = argument.static
    if given.shape != static.shape or given.dtype != static.dtype or given.device != static.device:
        return False
    if given.requires_grad is not argument.wants:
        return False
    return not argument.chained or (
        given.data_ptr() == static.data_ptr() and given.stride() == static.stride()
    )
