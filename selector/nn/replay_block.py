"""One block of a model as a pair of CUDA graphs, and the calls that these can replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from .replay_state import ModuleState


class Graph(Protocol):
    """Protocol of a captured CUDA graph."""

    def replay(self) -> None:
        """Launch of the graph on the current stream."""


class Argument(NamedTuple):
    """Tensor argument of a call, with the graph's static input."""

    static: Tensor
    source: tuple[int, int] | None  # the block before that gave it, and as which output; None from outside
    wants: bool  # its gradient


@dataclass(kw_only=True)
class Block:
    """CUDA graphs of one block with their static inputs, outputs and gradients.

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
        """Tensor arguments of the captured call."""
        return [one for one in self.arguments if isinstance(one, Argument)]

    @cached_property
    def state(self) -> ModuleState:
        """State of the module at capture."""
        return ModuleState(self.module)

    @cached_property
    def weights(self) -> tuple[nn.Parameter, ...]:
        """All parameters of the module."""
        return tuple(self.module.parameters())

    @cached_property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Parameters that have gradients."""
        return tuple(one for one in self.weights if one.requires_grad)

    @cached_property
    def returned(self) -> list[tuple[Tensor, Tensor | None]]:
        """Tensor outputs, each with the static tensor for its gradient."""
        pairs = zip(self.outputs, self.given, strict=True)
        return [(output, given) for output, given in pairs if output is not None]

    @property
    def watched(self) -> list[Tensor]:
        """Tensors in graph memory that callers could hold: outputs, except a last block's, and all
        gradients.
        """
        outputs = () if self.last else self.outputs
        return [one for one in (*outputs, *self.given, *self.gradients) if one is not None]

    @property
    def versions(self) -> list[int]:
        """Version counters of the outputs and weights that backward needs unchanged."""
        return [one._version for one in (*self.outputs, *self.weights) if one is not None]

    def remember(self) -> None:
        """Record of the module's current state as the captured one."""
        self.state, self.parameters, self.tensors, self.returned  # noqa: B018  # kept from here on

    def fits(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call matches the captured one in everything but tensor values."""
        if form_of(args, kwargs) != self.form:
            return False
        found = tuple(leaves(args, kwargs))
        return len(found) == len(self.arguments) and all(map(_alike, self.arguments, found))


def leaves(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Arguments of a call, with tuples flattened."""
    for value in (*args, *kwargs.values()):
        if type(value) is tuple:
            yield from value
        else:
            yield value


def form_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Structure of a call's arguments: names, and lengths of tuples."""
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
