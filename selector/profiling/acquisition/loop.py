"""Order of a profiling run by active sampling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, Record

from ..winners import is_current
from .sampler import Sampler

if TYPE_CHECKING:
    from kernel_selector.db import Database
    from kernel_selector.kernels.measure import Session


@dataclass(frozen=True)
class Active:
    """Active sampling of several operators in turns. `refused` candidates cost nothing, and run with
    others.
    """

    samplers: Mapping[str, Sampler]
    waiting: Mapping[str, list[Problem]]
    refused: Mapping[Problem, Sequence[str]]

    @classmethod
    def of(
        cls,
        store: Database,
        measuring: Session,
        wanted: Mapping[Problem, Sequence[str]],
        todo: Mapping[Problem, Sequence[str]],
    ) -> Active:
        """Active sampling that starts from the database's records of the wanted problems."""
        from kernel_selector.db import records

        samplers, waiting, refused = {}, {}, {}
        for operator in dict.fromkeys(problem.operator for problem in todo):
            runs: dict[Problem, list[str]] = {}
            for problem, names in wanted.items():
                if problem.operator == operator:
                    takes = _accepting(problem, measuring.device)
                    runs[problem] = [name for name in names if name in takes]
                    refused[problem] = [name for name in names if name not in takes]
            samplers[operator] = Sampler(runs)
            waiting[operator] = [problem for problem in todo if problem.operator == operator]
            with store.read() as connection:
                where: dict[str, Any] = {"operator": operator, "device_key": measuring.device.key}
                found = records.find(connection, **where, regime=measuring.policy.regime)
                for record in found:
                    if record.problem in runs and is_current(record, measuring):
                        _add(samplers[operator], record)
        return cls(samplers, waiting, refused)

    def __iter__(self) -> Iterator[tuple[Problem, Sequence[str]]]:
        """Problems and implementations to measure, until no measurement is worth its time."""
        going = dict(self.samplers)
        while going:
            for operator, sampler in list(going.items()):
                found = sampler.next(self.waiting[operator])
                if found is None:
                    del going[operator]
                else:
                    problem, names = found
                    yield problem, [*names, *self.refused[problem]]

    def add(self, record: Record) -> None:
        """Add a record to the sampler of its operator."""
        _add(self.samplers[record.problem.operator], record)

    def part(self) -> None:
        """Draw otherwise than another run over the same problems."""
        for sampler in self.samplers.values():
            sampler.part()


def _add(sampler: Sampler, record: Record) -> None:
    if record.implementation in sampler.problems.get(record.problem, ()):
        total = record.total
        sampler.add(record.problem, record.implementation, total.undisturbed_ms if total else None)


def _accepting(problem: Problem, device: Device) -> set[str]:
    return {implementation.name for implementation in registry.candidates(problem, device)[0]}
