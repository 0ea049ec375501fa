"""What the implementations of an operator count and refuse, all together, for choices among them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter

from . import registry
from .by_paths import Asked, ByPaths, Row
from .contract import Device, Implementation, Problem, Work
from .tracing import TracedProblem, value_of

COUNTS = ("flops", "moved_bytes", "saved_bytes", "launches", "steps")

Counted = tuple[float | None, ...]
NOTHING = (None,) * len(COUNTS)
counts_of: Callable[[Work], tuple[float, ...]] = attrgetter(*COUNTS)

MOST_FUNCTIONS = 1024  # whose paths are kept
# arguments beside the hyperparameters: what the operator itself counted, and of which types these numbers are
LEAST = (*(f"least_{name}" for name in COUNTS), "least_types")


def counted(problem: Problem, accepting: Collection[str]) -> Counted:
    """COUNTS of the operator and of each implementation, in one tuple; None for those not `accepting`."""
    found: list[float | None] = list(counts_of(registry.operator(problem.operator).work(problem)))
    for name, item in registry.implementations(problem.operator).items():
        found += counts_of(item.work(problem)) if name in accepting else NOTHING
    return tuple(found)


def accepted_each(
    operator: str, device: Device, rows: Sequence[Row], problems: Sequence[Problem]
) -> list[tuple[str, ...]]:
    """The names of the implementations that accept each problem on a device; `rows` are their values."""
    known, described = registry.implementations(operator), _Described(device)
    masks = [0] * len(rows)  # a bit for each implementation that refuses
    for place, item in enumerate(known.values()):
        bit, refusals = 1 << place, _refusals(item.unsupported, operator, described)
        for index, (accepts,) in enumerate(refusals.of_each(rows, problems)):
            if not accepts:
                masks[index] |= bit
    found = {
        mask: tuple([name for place, name in enumerate(known) if not mask >> place & 1])
        for mask in set(masks)
    }
    return [found[mask] for mask in masks]


def least_each(operator: str, rows: Sequence[Row], problems: Sequence[Problem]) -> list[Row]:
    """What the operator counts of each problem, COUNTS and the types of these, as LEAST has them."""
    return _least(registry.operator(operator).work, operator).of_each(rows, problems)


def counted_each(item: Implementation, rows: Sequence[Row], problems: Sequence[Problem]) -> list[Row]:
    """COUNTS of an implementation for each problem; `rows` have LEAST behind the values."""
    return _counts(item.work, item.operator).of_each(rows, problems)


class CountedBytes(Mapping[str, float]):
    """What implementations keep between forward and backward, by name, of what was `counted`."""

    def __init__(self, operator: str, counts: Counted) -> None:
        self._names, self._counts = tuple(registry.implementations(operator)), counts

    def __getitem__(self, name: str) -> float:
        place = len(COUNTS) * (1 + self._names.index(name)) + COUNTS.index("saved_bytes")
        return self._counts[place] or 0.0

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Described:
    """A device, equal to others of which everything is equal."""

    def __init__(self, device: Device) -> None:
        self.device, self._text = device, repr(device)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Described) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


# functions, and not names, are what paths are kept for: another implementation may take a name's place
@lru_cache(MOST_FUNCTIONS)
def _refusals(
    unsupported: Callable[[Problem, Device], str | None], operator: str, described: _Described
) -> ByPaths:
    def refusal(problem: Problem) -> str | None:
        return unsupported(problem, described.device)

    name = f"{unsupported.__module__}.unsupported"
    return ByPaths(Asked(name, refusal, _hyperparameters(operator), lambda reason: (reason is None,)))


@lru_cache(MOST_FUNCTIONS)
def _least(work: Callable[[Problem], Work], operator: str) -> ByPaths:
    def said(found: Work) -> Row:
        counts = counts_of(found)
        return (*counts, " ".join([type(value_of(one)).__name__ for one in counts]))

    return ByPaths(Asked(f"work of {operator}", work, _hyperparameters(operator), said))


@lru_cache(MOST_FUNCTIONS)
def _counts(work: Callable[[Problem], Work], operator: str) -> ByPaths:
    kept_as = getattr(registry.operator(operator).work, "kept_as", "")

    def prepare(problem: TracedProblem) -> None:
        *counts, types = [problem[name] for name in LEAST]
        str(types)  # on which the path rests
        vars(problem)[kept_as] = Work(**dict(zip(COUNTS, counts, strict=True)))

    arguments = (*_hyperparameters(operator), *LEAST)
    return ByPaths(Asked(f"{work.__module__}.work", work, arguments, counts_of, prepare))


def _hyperparameters(operator: str) -> tuple[str, ...]:
    return tuple(spec.name for spec in registry.operator(operator).hyperparameters)
