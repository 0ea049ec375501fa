"""Selection of implementations for a module's calls: chosen by shape, built once, and cached."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, SelectorError, UnsupportedProblem
from kernel_selector.kernels.contract.record import LAUNCHED

from ..errors import InvalidRequest
from ..selection.devices import identified
from ..selection.query import limit_of
from ..selection.selector import shared_selector
from .hyperparameters import Values

if TYPE_CHECKING:
    from kernel_selector.db import Database

    from ..selection.choice import Choice

# sizes that differ from call to call; calls are of one class where these lie between the same powers of two
SIZES = frozenset({"batch", "seq", "kv_seq", "rows", "elements", "source", "target"})
MOST_CALLS = 256  # shapes that are remembered, of which each is a name and a reference
# what the calls of a thread are for: those that torch.compile traces are of layers amid others
REGIME: ContextVar[str] = ContextVar("regime", default=LAUNCHED)
META = "meta"  # where nothing is computed but shapes, and any implementation gives these
MOST_BUILT = 16  # implementations that are kept built; they hold no weights of their own


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Arguments of `selector.choose` for a module; `implementation` is its `override`.

    Raises InvalidRequest for an objective or memory that no call can be chosen by.
    """

    implementation: str | None = None
    objective: str = "time"
    memory: str | int | None = None
    database: str | Path | Database | None = None

    def __post_init__(self) -> None:
        limit_of(self.objective, self.memory)


@dataclass(frozen=True)
class Chosen:
    """Cached selection for calls of one class: `built` is None for the owner's forward, `choice` None
    without a query.
    """

    name: str
    built: Built | None
    choice: Choice | None


class Built:
    """Implementation without weights; each call gets a copy with its owner's parameters.

    The copy is of objects, not of tensors: threads that call one module share nothing that a call changes,
    and no call leaves a weight behind.
    """

    def __init__(self, problem: Problem, name: str) -> None:
        with torch.device("meta"):  # takes no memory, and no random numbers from the user's generator
            self.module = registry.implementation(problem.operator, name).build(problem)
        self._parts = [_Part.of(path, part) for path, part in self.module.named_modules()]
        shapes = {name: one.shape for name, one in self.module.named_parameters()}
        self._shapes = [(full, shapes.get(full)) for part in self._parts for _, full in part.leaves]

    def takes(self, parameters: Mapping[str, Tensor | None]) -> bool:
        """Whether the given parameters match the implementation's in names and shapes."""
        given = {name: one.shape for name, one in parameters.items() if one is not None}
        return all(given.get(name) == shape for name, shape in self._shapes)

    def lent(self, parameters: Mapping[str, Tensor | None], training: bool) -> nn.Module:
        """Copy of the implementation for one call, with its owner's parameters and mode."""
        made: dict[str, Any] = {}
        for part in self._parts:
            module = made[part.path] = object.__new__(part.kind)
            state = module.__dict__
            state.update(part.state)
            state["training"] = training
            state["_parameters"] = own = {leaf: parameters.get(full) for leaf, full in part.leaves}
            if part.flat is not None:
                state["_flat_weights"] = [own.get(leaf) for leaf in part.flat]
            if part.children:
                state["_modules"] = {}
            if part.parent is not None:
                made[part.parent].__dict__["_modules"][part.name] = module
        found: nn.Module = made[""]
        return found


class _Part(NamedTuple):
    """Template of one submodule, from which copies of an implementation are made."""

    path: str
    parent: str | None  # the path of the module that has it
    name: str
    kind: type[nn.Module]
    state: Mapping[str, Any]
    leaves: tuple[tuple[str, str], ...]  # its parameters' names, and those with its path
    flat: Sequence[str] | None  # of a recurrent module, in torch's order
    children: bool

    @classmethod
    def of(cls, path: str, module: nn.Module) -> _Part:
        """Template of the submodule at a path. Templates of parents come first."""
        parent, _, name = path.rpartition(".")
        leaves = tuple((leaf, f"{path}.{leaf}" if path else leaf) for leaf in module._parameters)
        state, flat = dict(module.__dict__), None
        if isinstance(module, nn.RNNBase):
            flat = module._flat_weights_names
            state["_flat_weight_refs"] = [None] * len(flat)  # else torch would lay out the weights anew
        kept = parent if path else None
        return cls(path, kept, name, type(module), state, leaves, flat, bool(module._modules))


class Selection:
    """Choices of one operator's implementations for one module.

    `torchs_own` says that the owner's own forward can take any call; then the framework's default needs
    nothing built, because that forward is it, unless it is `written_out` in other operations. Copies, and
    what is loaded from a file, start without choices, and keep the policy and what is frozen.
    """

    def __init__(
        self, operator: str, policy: Policy, *, torchs_own: bool = True, written_out: bool = False
    ) -> None:
        self.operator = registry.operator(operator).name
        self.default = registry.operator(operator).default
        self.policy = replace(policy, implementation=_asked_for(operator, policy.implementation))
        self.frozen: str | None = None
        self.latest: Problem | None = None  # that was decided for
        self._torchs_own = torchs_own
        self._is_default = torchs_own and not written_out
        self._forget()

    def _forget(self) -> None:
        self._calls: OrderedDict[Any, Chosen] = OrderedDict()
        self.recorded: dict[str, nn.Module] = {}  # what graphs of torch.compile call, without weights
        self._classes: OrderedDict[Any, Chosen] = OrderedDict()
        self._agreed: dict[Any, str] = {}  # names by class that were chosen for this module elsewhere
        self._deciding = Lock()  # threads that share a module decide one after another

    def __getstate__(self) -> dict[str, Any]:
        kept = ("operator", "policy", "frozen", "_torchs_own", "_is_default", "_agreed")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restored policy and frozen name. A saved name may be of a removed implementation."""
        self._forget()
        self.latest = None
        self.__dict__.update(state)
        operator, asked = self.operator, self.policy.implementation
        self.default = registry.operator(operator).default
        if asked is not None and registry.retirement(operator, asked):
            self.policy = replace(self.policy, implementation=_asked_for(operator, asked))
        if self.frozen is not None and registry.retirement(operator, self.frozen):
            self.frozen = _asked_for(operator, self.frozen)

    @property
    def _regime(self) -> str:
        """The regime that a choice is made for: what was named is the same in all."""
        named = self.policy.implementation is not None or self.frozen is not None
        return LAUNCHED if named else REGIME.get()

    @property
    def is_torchs_own(self) -> bool:
        """Whether every call uses the owner's own forward."""
        return self._is_default and self.frozen == self.default

    @property
    def names(self) -> list[str]:
        """Names of the selected implementations, the latest last."""
        return list(dict.fromkeys(one.name for one in self._classes.values()))

    @property
    def choices(self) -> list[Choice]:
        """Choices behind the selections; none for a frozen name."""
        return [one.choice for one in self._classes.values() if one.choice is not None]

    def freeze(self, name: str | None = None) -> None:
        """Fixed implementation for all calls: the named one, or the latest.

        Raises InvalidRequest where there is none yet, UnknownImplementation for another's name.
        """
        if name is None:
            if not self._classes:
                raise InvalidRequest(
                    f"freeze() before the first call: nothing of {self.operator} is chosen yet. "
                    "Call the module once, or name an implementation: freeze('...')."
                )
            name = next(reversed(self._classes.values())).name
        self.frozen = _asked_for(self.operator, name)
        self._forget()

    def unfreeze(self) -> None:
        """End of `freeze`: the next call selects again."""
        self.frozen = None
        self._forget()

    def agree(self, problem: Problem, name: str) -> None:
        """Preset implementation for the calls of a problem's class, from an earlier choice for this
        module.
        """
        self._agreed[shape_class(problem)] = name

    def of_call(self, key: Any) -> Chosen | None:
        """Cached selection for a call with this key in its regime, or None."""
        return self._calls.get((key, REGIME.get()))

    def decide(
        self,
        key: Any,
        values: Values,
        parameters: Mapping[str, Tensor | None],
        dtype: torch.dtype,
        mode: str,
        device: str,
    ) -> Chosen:
        """New selection for a call that is not in the cache.

        Raises UnsupportedProblem where a named or frozen implementation refuses it, NothingFits, and the
        other errors of `selector.choose`. What no problem can say, a size of zero or parameters in other
        shapes than the module was made with, is left to torch.
        """
        with self._deciding:
            return self._decided(key, values, parameters, (dtype, mode, device))

    def _decided(
        self,
        key: Any,
        values: Values,
        parameters: Mapping[str, Tensor | None],
        circumstances: tuple[torch.dtype, str, str],
    ) -> Chosen:
        dtype, mode, device = circumstances
        try:
            problem = registry.operator(self.operator).problem(values, dtype=dtype, mode=mode)
        except SelectorError:
            if not self._torchs_own:
                raise
            chosen = Chosen(registry.operator(self.operator).default, None, None)
        else:
            self.latest = problem
            chosen = self._for_class(problem, device, computed=any(map(_is_computed, parameters.values())))
            if chosen.built is not None and not chosen.built.takes(parameters):
                if not self._torchs_own:
                    raise UnsupportedProblem(_unlike(chosen, parameters))
                chosen = Chosen(registry.operator(self.operator).default, None, None)
        _remember(self._calls, (key, REGIME.get()), chosen, MOST_CALLS)
        return chosen

    def _for_class(self, problem: Problem, device: str, *, computed: bool) -> Chosen:
        of_class = (*shape_class(problem), device, computed, self._regime)
        known = self._classes.get(of_class)
        if known is not None and _refusal(problem, known.name, device) is None:
            self._classes.move_to_end(of_class)
            return known
        chosen = self._chosen(problem, device, computed=computed)
        _remember(self._classes, of_class, chosen, MOST_BUILT)
        return chosen

    def _chosen(self, problem: Problem, device: str, *, computed: bool) -> Chosen:
        if device == META:
            default = registry.operator(problem.operator).default
            return Chosen(default, Built(problem, default), None)
        name, choice = self.frozen, None
        if name is not None:
            if refusal := _refusal(problem, name, device):
                raise UnsupportedProblem(
                    f"{name!r} is frozen and cannot compute {problem} on {device}: {refusal}. "
                    "Call unfreeze(), or freeze another implementation."
                )
        else:
            name = self._agreed.get(shape_class(problem))
            is_there = name in registry.implementations(problem.operator)
            if name is None or not is_there or _refusal(problem, name, device):
                choice = self._asked(problem, device)
                name = choice.implementation
        # torch's own forward would compute a second time what was computed for this call
        own = self._is_default and name == registry.operator(problem.operator).default and not computed
        return Chosen(name, None if own else Built(problem, name), choice)

    def _asked(self, problem: Problem, device: str) -> Choice:
        policy = self.policy
        hyperparameters: dict[str, Any] = {**problem.as_dict}
        return shared_selector(policy.database).choose(
            problem.operator,
            device=device,
            memory=policy.memory,
            objective=policy.objective,
            override=policy.implementation,
            regime=self._regime,
            **hyperparameters,
        )


def shape_class(problem: Problem) -> tuple[Any, ...]:
    """Cache key of problems that share an implementation: all values, with sizes rounded to powers of two."""
    return (
        problem.operator,
        *(
            (name, (int(value) - 1).bit_length() if name in SIZES else value)
            for name, value in problem.values
        ),
    )


def _unlike(chosen: Chosen, parameters: Mapping[str, Tensor | None]) -> str:
    given = {name: None if one is None else list(one.shape) for name, one in parameters.items()}
    return (
        f"Parameters {given} are not those that {chosen.name!r} computes with: give the module parameters of "
        "the shapes that it was made with, or make another with the sizes that these have."
    )


def _is_computed(parameter: Tensor | None) -> bool:
    """Whether each call computes the parameter from others, as parametrizations do; a view is not
    computed.
    """
    if parameter is None or isinstance(parameter, nn.Parameter):
        return False
    return not isinstance(parameter._base, nn.Parameter)


def _asked_for(operator: str, name: str | None) -> str | None:
    """Implementation name behind a user's name, with a warning where it is a replacement."""
    found = None if name is None else registry.named(operator, name).name
    if name is not None and found != name:
        warnings.warn(str(registry.retirement(operator, name)), stacklevel=2)
    return found


def _refusal(problem: Problem, name: str, device: str) -> str | None:
    if device == META:
        return None
    return registry.implementation(problem.operator, name).unsupported(problem, identified(device))


def _remember(cache: OrderedDict[Any, Chosen], key: Any, chosen: Chosen, most: int) -> None:
    cache[key] = chosen
    if len(cache) > most:
        cache.popitem(last=False)
