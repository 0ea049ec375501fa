"""Lists of what to measure as files: a JSON line for each problem, with the implementations to run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import registry
from ..contract import Problem, SelectorError
from ..contract.errors import shorten

SHAPE = '{"operator": "lstm", "hyperparameters": {"hidden": 64, "batch": 8}, "implementations": ["fused"]}'


class InvalidJobs(SelectorError, ValueError):
    """A file, or a share of it, that is no list of problems to measure."""


@dataclass(frozen=True)
class Job:
    """A problem and the implementations to measure for it."""

    problem: Problem
    implementations: tuple[str, ...]

    def to_json(self) -> str:
        """One JSON line; `read_jobs` reads it back."""
        problem = {"operator": self.problem.operator, "hyperparameters": dict(self.problem.as_dict)}
        return json.dumps({**problem, "implementations": list(self.implementations)})

    @classmethod
    def from_json(cls, line: str) -> Job:
        """The job of a line; without `implementations` all of them run. Raises InvalidJobs."""
        try:
            data = json.loads(line)
            operator = registry.operator(data["operator"])
            names = data.get("implementations") or registry.implementations(operator.name)
            for name in names:
                registry.implementation(operator.name, name)
            return cls(operator.problem(data["hyperparameters"]), tuple(names))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if isinstance(error, SelectorError):
                raise InvalidJobs(str(error)) from None
            raise InvalidJobs(f"{shorten(line)}: expected a line such as {SHAPE}.") from None
        except SelectorError as error:
            raise InvalidJobs(str(error)) from None


def read_jobs(file: Path) -> list[Job]:
    """The jobs of a file in their order, a problem that it names twice once, with all its implementations.

    Raises InvalidJobs, with the line's number, and OSError where the file cannot be read.
    """
    found: dict[Problem, Job] = {}
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            job = Job.from_json(line)
        except InvalidJobs as error:
            raise InvalidJobs(f"{file}, line {number}: {error}") from None
        before = found.get(job.problem, Job(job.problem, ()))
        names = dict.fromkeys(before.implementations + job.implementations)
        found[job.problem] = Job(job.problem, tuple(names))
    if not found:
        raise InvalidJobs(f"{file} names no problem: expected lines such as {SHAPE}.")
    return list(found.values())


def write_jobs(file: Path, jobs: Iterable[Job]) -> None:
    """One line a job. Raises OSError."""
    file.write_text("".join(f"{job.to_json()}\n" for job in jobs))


def share(jobs: Sequence[Job], text: str | None) -> list[Job]:
    """`2/4`: every fourth job from the second on; None: all. Raises InvalidJobs."""
    if text is None:
        return list(jobs)
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise InvalidJobs(f"--shard {shorten(text)}: expected i/n with i from 1 to n, such as 1/4.")
    return list(jobs)[int(index) - 1 :: int(count)]
