"""What the implementations of an operator count and refuse, all together, for choices among them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from operator import attrgetter

from . import registry
from .by_paths import Asked, ByPaths, Row
from .contract import Device, Implementation, Problem, Work
from .tracing import MARK, TracedProblem, value_of

COUNTS = ("flops", "moved_bytes", "saved_bytes", "launches", "steps")

Counted = tuple[float | None, ...]
NOTHING = (None,) * len(COUNTS)
counts_of: Callable[[Work], tuple[float, ...]] = attrgetter(*COUNTS)

MOST_FUNCTIONS = 4096  # whose paths are kept: refusals are of each implementation on each device
# arguments beside the hyperparameters: what the operator itself counted, and of which types these numbers are
LEAST = (*(f"least_{name}" for name in COUNTS), "least_types")


def counted(problem: Problem, accepting: Collection[str]) -> Counted:
    """COUNTS of the operator and of each implementation, in one tuple; None for those not `accepting`."""
    found: list[float | None] = list(counts_of(registry.operator(problem.operator).work(problem)))
    for name, item in registry.implementations(problem.operator).items():
        found += counts_of(item.work(problem)) if name in accepting else NOTHING
    return tuple(found)


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


def refusals(item: Implementation, device: Device) -> ByPaths:
    """Of problems on a device: whether an implementation accepts each, and why not.

    The reason is None where the problem's own numbers are in it: for that, ask the implementation.
    """
    return _refusals(item.unsupported, item.operator, _Described(device))


def least(operator: str) -> ByPaths:
    """What an operator counts of problems: COUNTS, and the types of these, as LEAST has them."""
    return _least(registry.operator(operator).work, operator)


def counts(item: Implementation) -> ByPaths:
    """COUNTS of an implementation; behind the values of a problem, the paths' arguments are LEAST."""
    return _counts(item.work, item.operator)


def counts_alone(problem: Problem) -> Callable[[Implementation], tuple[float, ...]]:
    """What gives COUNTS of implementations for one problem, by paths that are known; none are looked for."""
    row = (*problem.row, *least(problem.operator).of_one(problem.row, problem))
    return lambda item: counts(item).of_one(row, problem)


class _Described:
    """A device, equal to others of which everything is equal."""

    def __init__(self, device: Device) -> None:
        self.device, self._text = device, device.text

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

    def said(reason: str | None) -> Row:
        return reason is None, None if reason is None or MARK in reason else reason

    return ByPaths(Asked(f"{unsupported.__module__}.unsupported", refusal, _hyperparameters(operator), said))


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
