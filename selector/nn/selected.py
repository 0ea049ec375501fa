"""What all drop-in modules share: choosing at a call, printing, freezing, torch.compile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from kernel_selector.kernels.contract.errors import shorten

from ..errors import InvalidRequest
from ..layer_problems import Values, as_made
from .replay_state import hooked
from .selection import Policy, Selection
from .signature import Signed

if TYPE_CHECKING:
    from kernel_selector.db import Database

    from ..choice import Choice


class Selected(nn.Module):
    """Mixed into a module of torch's: its forward becomes a choice among implementations.

    Arguments are torch's and, by keyword, `implementation` (a name, in place of a choice), `objective`
    ("time" or "memory"), `memory` (a limit for one layer's peak, bytes or text), `database` (as for
    `selector.choose`; a path or a URL where the module will be pickled) and `sizes`, with which the choice is
    made at once, for example `{"batch": 64, "seq": 50}`; else it is made at the first call. Calls with other
    sizes, dtypes, modes and devices get a choice of their own. All else is as torch has it: parameters, state
    dict, hooks.

    Under torch.func's transforms, and for sizes of zero, torch's own forward is called.
    """

    OPERATORS: ClassVar[Mapping[str, str]]  # the operators of a call by name; most modules have one, ""
    SIZES: ClassVar[tuple[str, ...]] = ()  # what `sizes` takes
    TORCHS_OWN: ClassVar[bool] = True  # the class that this is mixed into has a forward
    __signature__ = Signed()

    def __init__(
        self,
        *args: Any,
        implementation: str | Mapping[str, str] | None = None,
        objective: str = "time",
        memory: str | int | None = None,
        database: str | Path | Database | None = None,
        sizes: Mapping[str, int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        named = self._named(implementation)
        policy = Policy(objective=objective, memory=memory, database=database)
        self._start({name: replace(policy, implementation=named.get(name)) for name in self.OPERATORS})
        if sizes is not None:
            self._choose_for(sizes)

    def _start(self, policies: Mapping[str, Policy]) -> None:
        """Begin without choices; what has no policy is left to torch."""
        self._selections = {
            name: Selection(
                self.OPERATORS[name], policy, torchs_own=self.TORCHS_OWN, written_out=self._written_out()
            )
            for name, policy in policies.items()
        }

    def _written_out(self) -> bool:
        """Whether its own forward takes several operations for what the framework has one for."""
        return False

    def _named(self, implementation: str | Mapping[str, str] | None) -> Mapping[str, str]:
        """Names of implementations by those of operators. Raises InvalidRequest for other operators."""
        if implementation is None:
            return {}
        named = dict(implementation) if isinstance(implementation, Mapping) else {"": implementation}
        if not (
            named.keys() <= self.OPERATORS.keys() and all(isinstance(one, str) for one in named.values())
        ):
            raise InvalidRequest(
                f"implementation={implementation!r} for {type(self).__name__}: expected "
                + ("a name." if "" in self.OPERATORS else f"names by {', '.join(self.OPERATORS)}.")
            )
        return named

    @property
    def choices(self) -> list[Choice]:
        """The choices made so far, with their evidence: `module.choices[0].explain()`."""
        return [choice for selection in self._selections.values() for choice in selection.choices]

    def freeze(self, implementation: str | Mapping[str, str] | None = None) -> None:
        """Keep to the implementation of the latest call, or to the one named, whatever the sizes.

        Raises InvalidRequest before the first call where none is named, and UnknownImplementation. A later
        call that it cannot compute raises UnsupportedProblem.
        """
        named = self._named(implementation)
        for name, selection in self._selections.items():
            selection.freeze(named.get(name))

    def unfreeze(self) -> None:
        """Choose again, from the next call on."""
        for selection in self._selections.values():
            selection.unfreeze()

    def extra_repr(self) -> str:
        """As torch's, and which implementations were chosen."""
        words = []
        for name, selection in self._selections.items():
            chosen = f"{selection.frozen} (frozen)" if selection.frozen else " | ".join(selection.names)
            named = selection.policy.implementation or "chosen at the first call"
            words.append(f"{name or 'implementation'}={chosen or named}")
        return ", ".join(word for word in (super().extra_repr(), *words) if word)

    def _example(self, **sizes: int) -> tuple[Any, ...]:
        """Arguments of a call with these sizes, whose tensors take no memory."""
        raise NotImplementedError

    def _chosen_for_call(self, *args: Any) -> Any:
        """What a call with these arguments gets."""
        raise NotImplementedError

    def _choose_for(self, sizes: Mapping[str, int]) -> None:
        if not isinstance(sizes, Mapping) or set(sizes) != set(self.SIZES):
            wanted = ", ".join(self.SIZES) or "none"
            raise InvalidRequest(
                f"sizes={sizes!r} for {type(self).__name__}: expected {wanted}. "
                "Give these, or leave sizes out: the choice is then made at the first call."
            )
        for name, size in sizes.items():
            if not isinstance(size, int) or size < 1:
                raise InvalidRequest(f"sizes: {name}={shorten(size)}: expected a whole number from 1.")
        self._chosen_for_call(*self._example(**sizes))

    def _implementation(
        self,
        x: Tensor,
        dtype: torch.dtype,
        key: tuple[Any, ...],
        values: Callable[[], Values],
        name: str = "",
    ) -> nn.Module | None:
        """The implementation for a call, with this module's parameters; None for torch's own forward.

        `key` is what tells calls apart beside dtype, mode and device; `values`, asked for a new one only,
        gives hyperparameters.
        """
        selection = self._selections.get(name)
        if selection is None or selection.is_torchs_own or _left_to_torch(x, self.TORCHS_OWN):
            return None
        parameters = self._lent(name)
        training = self.training or _needs_gradient(x, parameters)
        full = (key, dtype, training, x.device)
        chosen = selection.of_call(full)
        if chosen is None:
            mode = "training" if training else "inference"
            chosen = selection.decide(full, values(), dtype, mode, str(x.device))
        return None if chosen.built is None else chosen.built.lent(parameters, self.training)

    def _lent(self, _name: str) -> Mapping[str, Tensor | None]:
        """The parameters of an operator, with the names that implementations have for them."""
        if all(name in self._parameters for name in self._weights()):
            return self._parameters
        return {**self._parameters, **{name: getattr(self, name) for name in self._weights()}}

    def _weights(self) -> Sequence[str]:
        """The names of its parameters, any of which may be computed, and then be an attribute instead."""
        return ()


def adopt(module: nn.Module, kind: type[Selected], policies: Mapping[str, Policy]) -> None:
    """Make a module of torch's one of ours, in place: all that refers to it, or hangs on it, stays."""
    module.__class__ = kind
    assert isinstance(module, Selected)
    module._start(policies)


def stands_for(*parts: object, kind: type[nn.Module] = nn.Module) -> bool:
    """Whether parts that are not called any more would compute what their class is known for, without hooks:
    they may have been wrapped, replaced or hooked since.
    """
    return all(as_made(one, kind) and not watched(one) for one in parts)


def watched(part: Any) -> bool:
    """Whether a call of a module does something for itself alone: it has hooks, or a forward of its own."""
    return hooked(part) or "forward" in part.__dict__


def _left_to_torch(x: Tensor, torchs_own: bool) -> bool:
    """Whether no implementation of ours can take such a call, and torch's own forward can."""
    return torchs_own and (x.is_meta or x.is_nested or torch._C._are_functorch_transforms_active())


def _needs_gradient(x: Tensor, parameters: Mapping[str, Tensor | None]) -> bool:
    if not torch.is_grad_enabled():
        return False
    return x.requires_grad or any(
        parameter is not None and parameter.requires_grad for parameter in parameters.values()
    )


def outside_of_graphs(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward of which torch.compile sees torch's own, where that is all it can be, else a graph break."""
    apart = _disable_dynamo(forward)

    @wraps(forward)
    def either(self: Selected, *args: Any, **kwargs: Any) -> Any:
        torchs_own = all(selection.is_torchs_own for selection in self._selections.values())
        if torchs_own or "torch._dynamo" not in sys.modules:  # nothing to hide, or nothing is compiled
            return forward(self, *args, **kwargs)
        return apart(self, *args, **kwargs)

    return either


class OneInput(Selected):
    """What modules of one tensor share; a kind of them says what is chosen for it."""

    @outside_of_graphs
    def forward(self, input: Tensor) -> Tensor:
        """x to y, as torch's module of this kind takes and gives them."""
        chosen = None if input.is_nested else self._chosen_for_call(input)
        y: Tensor = super().forward(input) if chosen is None else chosen(input)
        return y

    def _chosen_for_call(self, x: Tensor) -> nn.Module | None:
        """The implementation for x; None leaves the call to torch's own."""
        raise NotImplementedError
