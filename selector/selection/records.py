"""Stored records as evidence: those that their operator accepts, and repeats pooled to one.

Whether a candidate is fast by luck, one visit does not tell: on an H200 whose host others use, times of
candidates of a linear layer differ from one visit to the next by 7 % (one standard deviation), what all of
them have in common left out. Of the rules that were tried on three visits, by two of them for the third, the
samples of both together lose least and are nearest, before the mean and the least of the two visits' times
(`benchmarks/results/steady_survey_nvidia-h200_again_*`, whose records ship).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, Record, Status, Timing
from kernel_selector.kernels.contract.record import TIMINGS

if TYPE_CHECKING:
    from kernel_selector.db import Figures

Kept = TypeVar("Kept", bound="Record | Figures")


class Possible(Generic[Kept]):
    """Iterator over the records whose problem is possible.

    `left_out` counts the others as they pass, by the keys of their problems: a database may hold problems
    that no operator accepts, written by other programs.
    """

    def __init__(self, records: Iterable[Kept]) -> None:
        self._records = records
        self.left_out: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Kept]:
        # by object, because hidden="512" has the key of hidden=512; keeping the object keeps its id taken
        judged: dict[int, tuple[Problem, bool]] = {}
        for record in self._records:
            problem = record.problem
            if id(problem) not in judged:
                judged[id(problem)] = problem, registry.is_valid(problem)
            if judged[id(problem)][1]:
                yield record
            else:
                self.left_out[problem.key] += 1


def pooled(records: Iterable[Record]) -> Iterator[Record]:
    """One record for each identity: the newest, which says how it ends, and where good with all samples."""
    groups: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in records:
        groups[_identity(record)].append(record)
    for group in groups.values():
        group.sort(key=lambda record: record.measured_at)
        yield pool(group)


def _identity(record: Record) -> tuple[str, ...]:
    """The record's, and the same for versions that do the same."""
    name, version = record.implementation, record.implementation_version
    key, _, _, *circumstances = record.identity
    return key, name, registry.standing_version(record.problem.operator, name, version), *circumstances


def pool(records: Sequence[Record]) -> Record:
    """The last record, where good with the samples of all good ones, in the order of the records."""
    last = records[-1]
    if last.status is not Status.OK or len(records) == 1:
        return last
    good = [record for record in records if record.status is Status.OK]
    timings: dict[str, Any] = {name: _pooled([getattr(one, name) for one in good]) for name in TIMINGS}
    return replace(last, **timings)


def _pooled(timings: Sequence[Timing | None]) -> Timing | None:
    """All samples as one timing; the last one that there is, where not all have their samples."""
    from kernel_selector.kernels.measure.timing import timing

    known = [one for one in timings if one is not None]
    if len(known) < 2 or any(len(one.raw_ms) != one.samples for one in known):
        return known[-1] if known else None
    return timing([sample for one in known for sample in one.raw_ms])
