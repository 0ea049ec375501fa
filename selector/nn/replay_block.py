"""One block of a model as a pair of CUDA graphs, and which calls these stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from .replay_state import ModuleState


class Graph(Protocol):
    """What was captured."""

    def replay(self) -> None:
        """Run it on the current stream."""


class Argument(NamedTuple):
    """A tensor of a call, and where the graphs read it."""

    static: Tensor
    source: tuple[int, int] | None  # the block before that gave it, and as which output; None from outside
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
    form: tuple[Any, ...]  # of a call, see form_of
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
    def state(self) -> ModuleState:
        """The module as it was captured."""
        return ModuleState(self.module)

    @cached_property
    def weights(self) -> tuple[nn.Parameter, ...]:
        """All of the module's parameters."""
        return tuple(self.module.parameters())

    @cached_property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Those that have gradients."""
        return tuple(one for one in self.weights if one.requires_grad)

    @cached_property
    def returned(self) -> list[tuple[Tensor, Tensor | None]]:
        """The outputs that are tensors, with what takes their gradients."""
        pairs = zip(self.outputs, self.given, strict=True)
        return [(output, given) for output, given in pairs if output is not None]

    @property
    def watched(self) -> list[Tensor]:
        """What others could hold of the graphs' memory: outputs, but a last block's, and all gradients."""
        outputs = () if self.last else self.outputs
        return [one for one in (*outputs, *self.given, *self.gradients) if one is not None]

    @property
    def versions(self) -> list[int]:
        """Of what backward needs as forward had it: outputs and weights."""
        return [one._version for one in (*self.outputs, *self.weights) if one is not None]

    def remember(self) -> None:
        """The module is now as it was captured."""
        self.state, self.parameters, self.tensors, self.returned  # noqa: B018  # kept from here on

    def fits(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call is the one that was captured, but for the values of tensors."""
        if form_of(args, kwargs) != self.form:
            return False
        found = tuple(leaves(args, kwargs))
        return len(found) == len(self.arguments) and all(map(_alike, self.arguments, found))


def leaves(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """The arguments of a call, those of tuples among them one by one."""
    for value in (*args, *kwargs.values()):
        if type(value) is tuple:
            yield from value
        else:
            yield value


def form_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The names of a call's arguments, and how many there are in those that are tuples."""
    return tuple(kwargs), tuple(len(one) if type(one) is tuple else None for one in (*args, *kwargs.values()))


def _alike(argument: Any, given: Any) -> bool:
    if not isinstance(argument, Argument):
        return argument is given or (type(argument) is type(given) and bool(argument == given))
    if not isinstance(given, Tensor) or given.is_inference():
        return False
    static = argument.static
    if given.shape != static.shape or given.dtype != static.dtype or given.device != static.device:
        return False
    if given.requires_grad is not argument.wants:
        return False
    return argument.source is None or (
        given.data_ptr() == static.data_ptr() and given.stride() == static.stride()
    )
