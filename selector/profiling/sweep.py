"""Jobs of a run: a sweep of published and random layers, logged questions, and lists as files.

Every prefix of a sweep's order covers what the whole covers: operators take turns, and of each the published
and the random problems, both of them shuffled. So a budget leaves out some of everything.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.measure.jobs import Job, write_jobs

from ..errors import InvalidRequest
from ..exchange.files import written
from ..selection.query_log import asked
from ..workloads.published_layers import published_problems
from ..workloads.sampling import random_problems
from .profile import opened

if TYPE_CHECKING:
    from kernel_selector.db import Database

Jobs: TypeAlias = list[Job]

# these compile for each problem anew, 10 to 60 s: they run on every so many problems of an operator
COMPILED = ("torch_compile", "flex")
COMPILED_EVERY = 8
PROBLEMS = 68  # of each operator, where nobody says how many: about a thousand in all


def sweep_jobs(operators: Sequence[str], kind: str, *, count: int, seed: int = 0) -> list[Job]:
    """Jobs of `count` problems of each operator, or as many as there are, with the implementations to run.

    kind: "cpu" or "cuda", which sizes to draw; the published ones are of GPUs alone. The same seed gives
    the same jobs. Raises UnknownOperator, or InvalidHyperparameter when nothing can be drawn.
    """
    lists = [_jobs(operator, kind, count, seed) for operator in operators]
    return [job for turn in zip_longest(*lists) for job in turn if job is not None]


def _jobs(operator: str, kind: str, count: int, seed: int) -> Iterator[Job]:
    published = published_problems(operator) if kind == "cuda" else []
    random.Random(f"{operator} {seed}").shuffle(published)
    drawn = random_problems(operator, kind, count=count, seed=seed)
    turns = chain.from_iterable(zip_longest(published, drawn))
    problems = islice(dict.fromkeys(one for one in turns if one is not None), count)
    return (job(problem, index) for index, problem in enumerate(problems))


def job(problem: Problem, index: int) -> Job:
    """Job of an operator's `index`-th problem: all implementations, but slow ones only for few problems."""
    names = registry.implementations(problem.operator)
    run = (name for name in names if not (index % COMPILED_EVERY and name.startswith(COMPILED)))
    return Job(problem, tuple(run))


def named_operators(text: str) -> list[str]:
    """Operators named in `lstm,attention`, or all for `all`.

    Raises UnknownOperator.
    """
    if text == "all":
        return list(registry.operators())
    return [registry.operator(name).name for name in listed(text)]


def listed(text: str) -> list[str]:
    """Names in `lstm, attention`, without repetitions."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip())) or [text]


def every_job(problems: list[Problem]) -> list[Job]:
    """Jobs with all implementations of each problem."""
    return [Job(problem, tuple(registry.implementations(problem.operator))) for problem in problems]


def logged_problems(device: str | None, database: Database | str | Path | None) -> list[Problem]:
    """Problems of the query log that were asked about a device and answered without being sure.

    Raises InvalidRequest where there are none, and the errors of the database.
    """
    from kernel_selector.kernels.measure import identify

    from ..selection.devices import default_torch_device

    wanted = identify(device or default_torch_device())
    with opened(database) as store:
        found = asked(store, wanted.key)
    if not found:
        raise InvalidRequest(
            f"Nothing was asked about {wanted.name} that was answered without being sure: there is "
            "nothing to measure for it."
        )
    return found


def write_plan(file: Path, jobs: Sequence[Job]) -> tuple[int, int]:
    """Numbers of problems and candidates written to a file for `python -m kernels.measure --problems`.

    Raises as `written`.
    """
    with written(file) as part:
        write_jobs(part, jobs)
    return len(jobs), sum(len(job.implementations) for job in jobs)
