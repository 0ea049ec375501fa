"""Evaluations of every operator that has measurements, side by side and together."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kernel_selector import db
from kernel_selector.kernels import registry

from ..errors import NoMeasurements, TooFewProblems
from .evaluation import MODEL, WIDTH, Evaluation, Quality, quality
from .train import Judgement, judge

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
    def hard(self) -> Mapping[str, Quality]:
        """The cost model's slowdowns on hard splits, over all operators, by what was held out."""
        joined = _joined(one.hard for one in self.judgements)
        return {words: quality(values) for words, values in joined.items()}

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
            "hard_splits": {words: asdict(found) for words, found in self.hard.items()},
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
        lines += ["", "Slowdown on hard splits, of all operators, by what was held out:", ""]
        for words, found in self.hard.items():
            lines.append(
                f"{words:39}{found.problems:6}{found.gmean:8.3f}{found.p95:8.3f}{found.p99:8.3f}"
                f"{found.within_5_percent:11.1%}"
            )
        for reason in self.too_few.values():
            lines += textwrap.wrap(reason, WIDTH, break_on_hyphens=False)
        return "\n".join(lines)


def _joined(each: Iterable[Mapping[str, list[float]]]) -> dict[str, list[float]]:
    """The values of all operators by name."""
    found: dict[str, list[float]] = defaultdict(list)
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


def judge_all(database: db.Database, device: str | None = None) -> Judgements:
    """Judge every operator, on the measurements of one kind of device where it is named.

    Raises NoMeasurements when none has enough problems, and the errors of the database.
    """
    judgements, too_few = [], dict[str, TooFewProblems]()
    for name in registry.operators():
        try:
            judgements.append(judge(name, database, device))
        except TooFewProblems as error:
            too_few[name] = error
    if not judgements:
        some = [f" {error.found}." for error in too_few.values() if error.problems]
        raise NoMeasurements(
            f"No operator has problems enough to be judged.{''.join(some)} Measure more: "
            "`selector profile --operator all`."
        )
    return Judgements(tuple(judgements), {name: str(error) for name, error in too_few.items()})
