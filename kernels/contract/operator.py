"""An operator: its hyperparameters, its inputs and its reference."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .errors import (
    AmbiguousHyperparameter,
    InvalidHyperparameter,
    UnknownHyperparameter,
    shorten,
    suggest,
)
from .hyperparameter import Hyperparameter, Value
from .implementation import Work
from .problem import Problem, declare
from .space import Space

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Inputs:
    """Arguments and parameters of one call of a built module.

    `args` are its positional arguments (tensors, or tuples of them); `state_dict` its parameters, in
    the problem's dtype, with the names of the torch module that the operator stands for.
    """

    args: tuple[Any, ...]
    state_dict: Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator as found by listing the folders of `kernels`.

    `default` names the implementation that users have without us. `make_inputs(problem, device, seed)`
    draws random inputs on a torch device; `work(problem)` counts operations and bytes. The equations
    are in the folder's `reference.py`. `conflict(values)` says which values do not fit together, or None.
    """

    name: str
    title: str
    hyperparameters: tuple[Hyperparameter, ...]
    default: str
    make_inputs: Callable[[Problem, str, int], Inputs]
    work: Callable[[Problem], Work]
    examples: tuple[Mapping[str, Value], ...]
    spaces: Mapping[str, Space]
    conflict: Callable[[Mapping[str, Any]], str | None] = lambda _: None

    def __post_init__(self) -> None:
        declare(self.name, tuple(self._defaults), self._implied)

    @cached_property
    def _implied(self) -> dict[str, Value]:
        return {
            spec.name: spec.default
            for spec in self.hyperparameters
            if spec.implied and spec.default is not None
        }

    @cached_property
    def _defaults(self) -> dict[str, Value]:
        """All hyperparameters in canonical order, with their defaults, or something that will be replaced."""
        return {spec.name: "" if spec.default is None else spec.default for spec in self.hyperparameters}

    @cached_property
    def _needed(self) -> list[Hyperparameter]:
        """Those without a default."""
        return [spec for spec in self.hyperparameters if spec.default is None]

    @cached_property
    def _sources(self) -> list[tuple[str, str]]:
        """Those whose default is the value of another one, with its name."""
        defaults = [(spec.name, spec.default) for spec in self.hyperparameters]
        return [(name, value[1:]) for name, value in defaults if isinstance(value, str) and value[:1] == "="]

    @cached_property
    def _names(self) -> dict[str, Hyperparameter]:
        return {name: spec for spec in self.hyperparameters for name in (spec.name, *spec.aliases)}

    def problem(self, given: Mapping[str, object] | None = None, /, **more: object) -> Problem:
        """Validate and complete hyperparameters.

        Raises UnknownHyperparameter, InvalidHyperparameter or AmbiguousHyperparameter, each of which
        names the value and what would have been accepted.
        """
        return self._complete(self._parse({**(given or {}), **more} if more else given or {}))

    def problem_from_text(self, given: Mapping[str, str]) -> Problem:
        """The problem of values given as text, such as `{"hidden": "256"}`, completed as by `problem`."""
        return self._complete(self._parse(given, as_text=True))

    def makes(self, problem: Problem) -> bool:
        """Whether `problem` returns this problem for its values: complete, canonical and in range.

        False for what an older version, or another program, stored. Some microseconds.
        """
        named = problem.as_dict
        specs = [spec for spec in self.hyperparameters if spec.name in named or not spec.implied]
        if problem.operator != self.name or len(problem.values) != len(specs):
            return False
        try:
            return all(
                # 1 == True, so the type counts as well
                name == spec.name
                and type(value) is type(parsed := spec.parse(value))
                and value == parsed
                and not (spec.implied and value == spec.default)
                for spec, (name, value) in zip(specs, problem.values, strict=True)
            ) and not self.conflict({**self._implied, **named})
        except InvalidHyperparameter:
            return False

    def describe(self) -> dict[str, Any]:
        """A JSON-ready description of the operator and its hyperparameters."""
        return {
            "name": self.name,
            "title": self.title,
            "default_implementation": self.default,
            "hyperparameters": [spec.describe() for spec in self.hyperparameters],
        }

    def _parse(self, given: Mapping[str, Any], *, as_text: bool = False) -> dict[str, Value]:
        names = self._names
        values: dict[str, Value] = {}
        for name, value in given.items():
            spec = names.get(name)
            if spec is None:
                known = [spec.name for spec in self.hyperparameters]
                raise UnknownHyperparameter(
                    f"{self.name} has no hyperparameter {shorten(name)} (given {shorten(value)}). "
                    f"{suggest(name, known)}"
                )
            parsed = spec.parse_text(value) if as_text else spec.parse(value)
            own = spec.name
            if own in values and values[own] != parsed:
                alike = [other for other in given if names.get(other) is spec]
                before = alike[alike.index(name) - 1]
                raise AmbiguousHyperparameter(
                    f"{before}={values[own]!r} and {name}={shorten(value)} name the same "
                    f"hyperparameter of {self.name}: give one of them."
                )
            values[own] = parsed
        return values

    def _complete(self, values: dict[str, Value]) -> Problem:
        complete = {**self._defaults, **values}
        for name, source in self._sources:
            if name not in values:
                complete[name] = complete[source]
        for spec in self._needed:
            if spec.name not in values:
                raise InvalidHyperparameter(
                    f"{self.name} needs {spec.name}: {spec.help}; expected {spec.expected}."
                )
        return self._made(complete, self._assumed(values))

    def _assumed(self, named: Collection[str]) -> tuple[str, ...]:
        """What a problem says that was not named."""
        return tuple([name for name in self._said if name not in named])

    @cached_property
    def _said(self) -> list[str]:
        """The hyperparameters that problems have whether they are named or not."""
        sources = dict(self._sources)
        return [name for name in self._defaults if name in sources or name not in self._implied]

    def _made(self, complete: dict[str, Value], assumed: tuple[str, ...]) -> Problem:
        if conflict := self.conflict(complete):
            raise InvalidHyperparameter(conflict)
        return Problem.made(self.name, complete, assumed)
