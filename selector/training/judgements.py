"""Evaluations of every operator that has measurements, side by side and together."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import repeat
from multiprocessing import get_context
from typing import Any, TypeVar

import numpy as np

from kernel_selector import db
from kernel_selector.kernels import registry

from ..errors import NoMeasurements, TooFewProblems
from .evaluation import MODEL, WIDTH, Evaluation
from .train import Judgement, judge
from .verdicts import Quality, Verdict, figures, quality, summed_up

Value = TypeVar("Value")
BASELINES = ("always the default", "most frequent winner", "nearest neighbour")


@dataclass(frozen=True)
class Judgements:
    """`judgements` of the operators that could be judged, and why the others in `too_few` could not."""

    judgements: tuple[Judgement, ...]
    too_few: Mapping[str, str]

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The evaluation of each operator."""
        return tuple(one.evaluation for one in self.judgements)

    @cached_property
    def slowdowns(self) -> Mapping[str, list[float]]:
        """Slowdowns on the held-out shapes of all operators, by selector."""
        return _joined(one.slowdowns for one in self.judgements)

    @cached_property
    def pooled(self) -> Mapping[str, Quality]:
        """The distributions of `slowdowns`: a problem of any operator counts alike."""
        return {name: quality(values) for name, values in self.slowdowns.items()}

    @cached_property
    def verdicts(self) -> Mapping[str, list[Verdict]]:
        """The verdicts on choices of all operators, by what was held out."""
        return _joined(one.verdicts for one in self.judgements)

    @cached_property
    def not_judged(self) -> Mapping[str, str]:
        """Splits that could not be judged of any operator, with the reason of the first."""
        return {
            words: reason
            for one in reversed(self.evaluations)
            for words, reason in one.not_judged.items()
            if words not in self.verdicts
        }

    @property
    def step_errors(self) -> dict[str, float]:
        """Median relative errors of time and memory over the training steps of all operators."""
        every = [one.step_errors for one in self.judgements]
        return {
            name: float(np.median(np.concatenate([errors[name] for errors in every])))
            for name in ("time", "memory")
        }

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready data."""
        return {
            "pooled": {name: asdict(found) for name, found in self.pooled.items()},
            "splits": {words: summed_up(found) for words, found in self.verdicts.items()},
            "not_judged": dict(self.not_judged),
            "operators": [one.to_dict() for one in self.evaluations],
            "too_few": dict(self.too_few),
        }

    def table(self) -> str:
        """Plain text: a line for each operator, beside the best of its baselines."""
        head = f"{'':22}{'problems':>9}{'gmean':>8}{'p95':>8}{'p99':>8}{'within 5%':>11}{'baseline':>10}"
        lines = ["Slowdown on held-out shapes, and the least gmean of a baseline:", "", head]
        for one in self.judgements:
            lines += [_line(one.evaluation.operator, one.shapes)] if one.shapes else []
        lines += [_line("all", self.pooled)] if self.pooled else []
        title = "Choices by what was held out; the unjudged have no good time there:"
        head = f"{'':39}{'problems':>9}{'unjudged':>9}{'gmean':>7}{'p95':>7}{'in 5%':>9}"
        lines += ["", title, "", head]
        for words, verdicts in self.verdicts.items():
            found = figures(verdicts)
            lines.append(
                f"{words:39}{found['problems']:9}{found['unjudged']:9.1%}{found.get('gmean', 0):7.3f}"
                f"{found.get('p95', 0):7.3f}{found.get('within_5_percent', 0):9.1%}"
            )
        for words, reason in self.not_judged.items():
            lines += textwrap.wrap(f"Not judged: {words}: {reason}", WIDTH, break_on_hyphens=False)
        for reason in self.too_few.values():
            lines += textwrap.wrap(reason, WIDTH, break_on_hyphens=False)
        return "\n".join(lines)


def _joined(each: Iterable[Mapping[str, list[Value]]]) -> dict[str, list[Value]]:
    """The values of all operators by name."""
    found: dict[str, list[Value]] = defaultdict(list)
    for one in each:
        for name, values in one.items():
            found[name] += values
    return found


def _line(name: str, found: Mapping[str, Quality]) -> str:
    model = found[MODEL]
    least = min(found[baseline].gmean for baseline in BASELINES)
    return (
        f"{name:22}{model.problems:9}{model.gmean:8.3f}{model.p95:8.3f}{model.p99:8.3f}"
        f"{model.within_5_percent:11.1%}{least:10.3f}"
    )


def judge_all(
    database: db.Database,
    device: str | None = None,
    *,
    operators: Sequence[str] = (),
    jobs: int = 1,
    implementations: bool = True,
    done: Callable[[Judgement], None] = lambda _: None,
) -> Judgements:
    """Judge every operator, or those that are named, on the measurements of one kind of device or of all.

    `jobs` processes judge an operator each at a time, and `done` is told of each, in their order.
    `implementations` judges each as if it had not been measured, too. Raises NoMeasurements when none has
    enough problems, and the errors of the database.
    """
    names = operators or registry.operators()
    given = [names, repeat(device), repeat(implementations)]
    found = []
    results: Iterator[Judgement | TooFewProblems]
    with ExitStack() as stack:
        if jobs > 1:
            pool = stack.enter_context(ProcessPoolExecutor(jobs, get_context("spawn")))
            results = pool.map(_judged_elsewhere, repeat(database.location), *given)
        else:
            results = map(_judged, repeat(database), *given)
        for one in results:
            found.append(one)
            if isinstance(one, Judgement):
                done(one)
    judgements = tuple(one for one in found if isinstance(one, Judgement))
    too_few = {name: one for name, one in zip(names, found, strict=True) if isinstance(one, TooFewProblems)}
    if not judgements:
        some = [f" {error.found}." for error in too_few.values() if error.problems]
        raise NoMeasurements(
            f"No operator has problems enough to be judged.{''.join(some)} Measure more: "
            "`selector profile --operator all`."
        )
    return Judgements(judgements, {name: str(error) for name, error in too_few.items()})


def _judged(
    database: db.Database, operator: str, device: str | None, implementations: bool
) -> Judgement | TooFewProblems:
    try:
        return judge(operator, database, device, implementations=implementations)
    except TooFewProblems as error:
        return error


def _judged_elsewhere(location: str, *given: Any) -> Judgement | TooFewProblems:
    """The same in a process of its own."""
    with db.Database.open(location) as database:
        return _judged(database, *given)
