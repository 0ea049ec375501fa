"""A question as a value, and its arguments parsed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, UnknownDevice, UnknownImplementation
from kernel_selector.kernels.contract.errors import shorten, suggest

from ..errors import InvalidRequest
from ..text.units import parse_bytes
from ..workloads.imported_operator import ImportedOperator
from .catalogue import unknown_operator
from .devices import Resolved, default_torch_device, resolve

if TYPE_CHECKING:
    from .knowledge import Knowledge

DEFAULT_OPERATOR = "lstm"
OBJECTIVES = ("time", "memory")


@dataclass(frozen=True, kw_only=True)
class Query:
    """The arguments of `Selector.choose`, not yet checked."""

    hyperparameters: Mapping[str, object] = field(default_factory=dict)
    operator: str | None = None
    device: object = None
    memory: str | int | None = None
    objective: str = "time"
    override: str | None = None

    def __post_init__(self) -> None:
        if self.hyperparameters is None:
            object.__setattr__(self, "hyperparameters", {})
        elif not isinstance(self.hyperparameters, Mapping):
            given = shorten(self.hyperparameters)
            raise InvalidRequest(
                f'hyperparameters={given}: expected {{"hidden": 256, "batch": 8}}, for example.'
            )

    @property
    def named(self) -> str | None:
        """The implementation asked for by name: `override`, else SELECTOR_OVERRIDE_<OPERATOR>, else None."""
        if self.override is not None:
            return self.override
        return os.environ.get(f"SELECTOR_OVERRIDE_{self.operator or DEFAULT_OPERATOR}".upper()) or None


class Request(NamedTuple):
    """The parsed arguments of a question.

    `device` is the device as its measurements name it, which for an imported operator may be another name
    than that of `where`. `notes` are caveats of the answer.
    """

    problem: Problem
    where: Resolved
    device: Device
    limit_bytes: int | None
    objective: str
    override: str | None
    operator_assumed: bool
    notes: tuple[str, ...]
    imported: ImportedOperator | None = None  # None for an operator of this package


def parse(knowledge: Knowledge, query: Query) -> Request:
    """The parsed arguments of a question. Raises the errors that `selector.choose` lists."""
    name = DEFAULT_OPERATOR if query.operator is None else query.operator
    if not isinstance(name, str) or name in registry.operators():
        return _parsed(knowledge, query, name)
    if name in knowledge.imported:
        return _parsed_imported(knowledge, query, knowledge.imported[name])
    raise unknown_operator(name, knowledge.imported)


def _parsed(knowledge: Knowledge, query: Query, operator: str) -> Request:
    """The arguments of a question about an operator of this package."""
    problem = registry.operator(operator).problem(query.hyperparameters)
    _check_objective(query)
    asked = query.named
    named = None if asked is None else registry.named(problem.operator, asked).name
    retired = None if asked == named else registry.retirement(problem.operator, str(asked))
    limit_bytes = None if query.memory is None else parse_bytes(query.memory)
    where = knowledge.resolved(query.device)
    return Request(
        problem=problem,
        limit_bytes=limit_bytes,
        where=where,
        device=where.device,
        objective=query.objective,
        override=named,
        operator_assumed=query.operator is None,
        notes=tuple(note for note in (retired, where.note) if note),
    )


def _parsed_imported(knowledge: Knowledge, query: Query, operator: ImportedOperator) -> Request:
    """The arguments of a question about an imported operator."""
    problem = operator.problem(query.hyperparameters)
    limit_bytes = None if query.memory is None else parse_bytes(query.memory)
    _check_objective(query)
    named = query.named
    if named is not None and named not in operator.implementations:
        raise UnknownImplementation(
            f"Unknown implementation {shorten(named)} of {operator.name}. "
            f"{suggest(named, operator.implementations)}"
        )
    if not operator.memory and (limit_bytes is not None or query.objective == "memory"):
        raise InvalidRequest(
            f"Nothing is known of the memory of {operator.name}: no bytes were imported. Ask without "
            "`memory`, for objective='time'."
        )
    device, notes = _imported_device(knowledge, operator, query.device)
    origin = f"{operator.name} is {operator.describe()['title']}: its kernels cannot be built here."
    return Request(
        problem=problem,
        limit_bytes=limit_bytes,
        where=Resolved(_described(device), None),
        device=Device(name=device, kind=""),
        objective=query.objective,
        override=named,
        operator_assumed=False,
        notes=(origin, *notes),
        imported=operator,
    )


def _check_objective(query: Query) -> None:
    if query.objective not in OBJECTIVES:
        raise InvalidRequest(
            f"objective={shorten(query.objective)}: expected one of {', '.join(OBJECTIVES)}."
        )


def _imported_device(
    knowledge: Knowledge, operator: ImportedOperator, asked: object
) -> tuple[str, tuple[str, ...]]:
    """The imported name of the device that a question is about, and caveats. Raises UnknownDevice."""
    keys = operator.device_keys
    if asked is None:
        here = knowledge.resolved(default_torch_device()).device.key
        if here in keys:
            return keys[here], ()
        if len(keys) == 1:
            only = operator.devices[0]
            return only, (f"Answered for {only}: no device was named, and no other was measured.",)
        raise UnknownDevice(
            f"{operator.name} was not measured on this machine's device: name one of {', '.join(keys)}."
        )
    measured = (Device(name=name, kind="") for name in keys.values())
    try:
        found = resolve(asked, (*knowledge.devices, *measured))
        key, note = found.device.key, found.note
    except UnknownDevice:
        key = note = ""
    if key not in keys:
        raise UnknownDevice(
            f"{operator.name} was not measured on {shorten(getattr(asked, 'name', asked))}. "
            f"{suggest(asked, keys)}"
        )
    return keys[key], (note,) if note else ()


def _described(device: str) -> Device:
    """The known device of an imported name, or one with nothing but this name."""
    try:
        return resolve(device).device
    except UnknownDevice:
        return Device(name=device, kind="")
