"""Which implementations accept the problems of questions, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernel_selector.kernels import registry
from kernel_selector.kernels.asking import refusals
from kernel_selector.kernels.by_paths import Said
from kernel_selector.kernels.contract import Device

from .in_columns import told_each
from .reading import MANY, Reading
from .table import Table

Refusal = tuple[str, str | None]  # the name of an implementation, and its reason if all problems share it


class Considered(NamedTuple):
    """The names of implementations that accept a problem, and the reasons of the others by name."""

    accepted: tuple[str, ...]
    refused: Mapping[str, str]


class Refusals(Mapping[str, str]):
    """Why implementations refuse a problem; those without a reason are asked for it when somebody looks."""

    def __init__(
        self, problem: Reading, device: Device, names: Sequence[str], reasons: dict[str, str]
    ) -> None:
        self._problem, self._device, self._names, self._reasons = problem, device, names, reasons

    def __getitem__(self, name: str) -> str:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._reasons:
            item = registry.implementation(self._problem.operator, name)
            self._reasons[name] = item.unsupported(self._problem, self._device) or ""
        return self._reasons[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def considered(problem: Reading, device: Device) -> Considered:
    """One problem on a device."""
    accepted, refused = registry.candidates(problem, device)
    return Considered(tuple([item.name for item in accepted]), refused)


def considered_each(problems: Table, device: Device) -> list[Considered]:
    """Each problem on one device; many are asked together."""
    if len(problems) < MANY:
        return [considered(problem, device) for problem in problems]
    return list(_together(problems, device))


def _together(problems: Table, device: Device) -> Iterator[Considered]:
    """Problems that are refused alike share what is said of them."""
    known, row = registry.implementations(problems.operator.name), problems.rows.__getitem__
    numbers: dict[Refusal, int] = {}
    refused = np.full((len(problems), len(known)), -1)  # [problems, implementations]: the numbers of refusals
    for column, (name, item) in enumerate(known.items()):
        groups, others = told_each(refusals(item, device), problems.together, row, problems)
        alike: list[tuple[Any, Said]] = [(group.places, said) for group, said in groups]
        for places, (accepts, reason) in (*alike, *others.items()):
            if not accepts:
                refused[places, column] = numbers.setdefault((name, reason), len(numbers))
    each, shared = list(numbers), dict[bytes, Considered]()
    numbered, width = refused.tobytes(), refused[0].nbytes
    for place in range(len(problems)):
        mine_key = numbered[place * width : (place + 1) * width]
        found = shared.get(mine_key)
        if found is None:
            mine = [each[number] for number in refused[place].tolist() if number >= 0]
            found = _considered(known, mine, problems[place], device)
            if not isinstance(found.refused, Refusals):
                shared[mine_key] = found
        yield found


def _considered(
    known: Iterable[str], refused: Sequence[Refusal], problem: Reading, device: Device
) -> Considered:
    """A problem with these refusals."""
    names = [name for name, _ in refused]
    reasons = {name: reason for name, reason in refused if reason is not None}
    accepted = tuple([name for name in known if name not in names])
    if len(reasons) == len(names):
        return Considered(accepted, reasons)
    return Considered(accepted, Refusals(problem, device, names, reasons))
