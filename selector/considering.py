"""Which implementations accept the problems of questions, and why the others do not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kernel_selector.kernels import registry
from kernel_selector.kernels.asking import accepted_each
from kernel_selector.kernels.contract import Device

from .reading import MANY, Reading, rows_of


class Considered(NamedTuple):
    """The names of implementations that accept a problem, and the reasons of the others by name."""

    accepted: tuple[str, ...]
    refused: Mapping[str, str]


class Refusals(Mapping[str, str]):
    """Why implementations refuse a problem on a device, by name; they are asked when somebody looks."""

    def __init__(self, problem: Reading, device: Device, names: tuple[str, ...]) -> None:
        self._problem, self._device, self._names = problem, device, names

    def __getitem__(self, name: str) -> str:
        if name not in self._names:
            raise KeyError(name)
        item = registry.implementation(self._problem.operator, name)
        return item.unsupported(self._problem, self._device) or ""

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


def considered_each(asked: Sequence[tuple[Reading, Device]]) -> list[Considered]:
    """Each problem on its device; many of one operator on one device are asked together."""
    if len(asked) < MANY:
        return [considered(problem, device) for problem, device in asked]
    groups: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, (problem, device) in enumerate(asked):
        groups[problem.operator, id(device)].append(index)
    found: dict[int, Considered] = {}
    for (operator, _), members in groups.items():
        problems, device = [asked[index][0] for index in members], asked[members[0]][1]
        if len(members) < MANY:
            found |= {index: considered(asked[index][0], device) for index in members}
            continue
        known = tuple(registry.implementations(operator))
        names = accepted_each(operator, device, rows_of(problems), problems)
        others = {each: tuple([name for name in known if name not in each]) for each in set(names)}
        for index, problem, each in zip(members, problems, names, strict=True):
            found[index] = Considered(each, Refusals(problem, device, others[each]))
    return [found[index] for index in range(len(asked))]
