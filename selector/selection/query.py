"""A question as a value, and its arguments parsed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import (
    Device,
    Problem,
    UnknownDevice,
    UnknownImplementation,
    UnsupportedDevice,
)
from kernel_selector.kernels.contract.errors import shorten, suggest
from kernel_selector.kernels.contract.record import COMPILED, LAUNCHED

from ..errors import InvalidRequest
from ..text.units import parse_bytes
from ..workloads.imported_operator import ImportedOperator
from . import transfer
from .catalogue import unknown_operator
from .devices import Resolved, default_torch_device, resolve

if TYPE_CHECKING:
    from .knowledge import Knowledge

DEFAULT_OPERATOR = "lstm"
OBJECTIVES = ("time", "memory")
ASKED_REGIMES = (LAUNCHED, COMPILED)


@dataclass(frozen=True, kw_only=True)
class Query:
    """The arguments of `Selector.choose`, not yet checked."""

    hyperparameters: Mapping[str, object] = field(default_factory=dict)
    operator: str | None = None
    device: object = None
    memory: str | int | None = None
    objective: str = "time"
    override: str | None = None
    among: Sequence[str] | None = None
    regime: object = LAUNCHED

    def __post_init__(self) -> None:
        if self.among is not None:
            object.__setattr__(self, "among", _names(self.among))
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


def _names(among: object) -> tuple[str, ...]:
    """The names in a list of implementations, each once. Raises InvalidRequest for what is none."""
    given = (
        list(among) if isinstance(among, Iterable) and not isinstance(among, str | bytes | Mapping) else []
    )
    if not given or not all(isinstance(name, str) for name in given):
        raise InvalidRequest(
            f'among={shorten(among)}: expected a list of implementations to choose from, such as ["fused"].'
        )
    return tuple(dict.fromkeys(given))


class Request(NamedTuple):
    """The parsed arguments of a question.

    `device` is the device as its measurements name it, which for an imported operator may be another name
    than that of `where`. `origin` is the device whose measurements answer for one without any, of an imported
    operator. `notes` are caveats of the answer. `among` are the implementations to choose from, none for all.
    `regime` is the one asked for, and `measured_in` that of the measurements which answer: the same, or
    launched where nothing comparable was measured in it.
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
    origin: Device | None = None
    among: tuple[str, ...] = ()
    regime: str = LAUNCHED
    measured_in: str = LAUNCHED


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
    limit_bytes = limit_of(query.objective, query.memory)
    regime = _regime(query)
    asked, among = query.named, query.among or ()
    named = None if asked is None else registry.named(problem.operator, asked).name
    names = tuple(dict.fromkeys(registry.named(problem.operator, one).name for one in among))
    _check_override(named, names)
    given = (*among, *(() if asked is None else (asked,)))
    retired = [registry.retirement(problem.operator, one) for one in dict.fromkeys(given)]
    where = knowledge.resolved(query.device)
    return Request(
        problem=problem,
        limit_bytes=limit_bytes,
        where=where,
        device=where.device,
        objective=query.objective,
        override=named,
        operator_assumed=query.operator is None,
        notes=tuple(note for note in (*retired, where.note) if note),
        among=names,
        regime=regime,
        measured_in=regime,
    )


def _parsed_imported(knowledge: Knowledge, query: Query, operator: ImportedOperator) -> Request:
    """The arguments of a question about an imported operator."""
    problem = operator.problem(query.hyperparameters)
    limit_bytes = limit_of(query.objective, query.memory)
    named, among = query.named, tuple(query.among or ())
    for name in (*among, *(() if named is None else (named,))):
        if name not in operator.implementations:
            raise UnknownImplementation(
                f"Unknown implementation {shorten(name)} of {operator.name}. "
                f"{suggest(name, operator.implementations)}"
            )
    _check_override(named, among)
    if _regime(query) != LAUNCHED:
        raise InvalidRequest(
            f"regime={COMPILED!r}: measurements of {operator.name} are others', of one regime. Leave it out."
        )
    if not operator.memory and (limit_bytes is not None or query.objective == "memory"):
        raise InvalidRequest(
            f"Nothing is known of the memory of {operator.name}: no bytes were imported. Ask without "
            "`memory`, for objective='time'."
        )
    where = _imported_device(knowledge, operator, query.device)
    title = f"{operator.name} is {operator.describe()['title']}: its kernels cannot be built here."
    return Request(
        problem=problem,
        limit_bytes=limit_bytes,
        where=Resolved(where.device, None),
        device=where.own,
        objective=query.objective,
        override=named,
        operator_assumed=False,
        notes=(title, *where.notes),
        imported=operator,
        origin=where.origin,
        among=among,
    )


def _check_override(override: str | None, among: Sequence[str]) -> None:
    if override is not None and among and override not in among:
        raise InvalidRequest(
            f"override={override!r} is not in among={list(among)!r}: leave one of them out. The environment "
            "may name an override, too, as SELECTOR_OVERRIDE_<OPERATOR>."
        )


def _regime(query: Query) -> str:
    """The regime of a question. Raises InvalidRequest for what is none."""
    for regime in ASKED_REGIMES:
        if query.regime == regime:
            return regime
    raise InvalidRequest(f"regime={shorten(query.regime)}: expected one of {', '.join(ASKED_REGIMES)}.")


def limit_of(objective: object, memory: str | int | None) -> int | None:
    """Bytes of a memory limit, None without one. Raises InvalidRequest for what is none or no objective."""
    if objective not in OBJECTIVES:
        raise InvalidRequest(f"objective={shorten(objective)}: expected one of {', '.join(OBJECTIVES)}.")
    return None if memory is None else parse_bytes(memory)


class _Where(NamedTuple):
    """The device that a question is about, its name among the measured ones, and the one that answers."""

    device: Device
    own: Device
    origin: Device
    notes: tuple[str, ...] = ()


def _imported_device(knowledge: Knowledge, operator: ImportedOperator, asked: object) -> _Where:
    """Where a question about an imported operator is answered, with caveats.

    Raises UnknownDevice for a name that is neither measured nor known.
    """
    known = operator.measured_devices
    if asked is None and len(known) == 1:
        (only,) = known.values()
        here = knowledge.resolved(default_torch_device()).device.key
        words = f"Answered for {only.name}: no device was named, and no other was measured."
        return _Where(_described(only), only, only, () if here == only.key else (words,))
    try:
        measured = (*knowledge.devices, *known.values())
        found = resolve(default_torch_device() if asked is None else asked, measured)
    except UnsupportedDevice:  # by implementations of ours, which others need not care for
        found = Resolved(Device(name=str(asked), kind=""), None)
    except UnknownDevice as error:
        raise UnknownDevice(
            f"{operator.name} was not measured on {shorten(asked)}, only on {', '.join(known)}. {error}"
        ) from error
    device, notes = found.device, (found.note,) if found.note else ()
    if device.key in known:
        own = known[device.key]
        return _Where(_described(own), own, own, notes)
    alike = min(known.values(), key=lambda one: transfer.apart(device, _described(one)))
    words = (
        f"{operator.name} was not measured on {device.name}: time and bytes are those of {alike.name}, which "
        f"is most like it of what was measured ({', '.join(operator.devices)})."
    )
    return _Where(device, device, alike, (*notes, words))


def _described(device: Device) -> Device:
    """The known device of an imported name, or the same with nothing but this name."""
    try:
        return resolve(device.name).device
    except UnknownDevice:
        return device
