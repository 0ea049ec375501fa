"""Outliers among the measurements: candidates for a second measurement.

A host that others use stands still now and then while a candidate is measured, and what was taken then says
that the candidate is slow. Where the model that has not seen a problem chooses what was measured to be much
slower than the best, either the model is wrong or a measurement is, and a second one tells. All candidates
of the problem are measured again, whichever it was, so that they compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import TooFewProblems
from ..training.dataset import Dataset
from ..training.robustness import unseen_choices
from ..training.train import load_measured

if TYPE_CHECKING:
    from kernel_selector.db import Database
    from kernel_selector.kernels.measure.jobs import Job

LEAST_LOSS = 0.1  # of time, by the choice of the model: less is what close races lose


def outlier_jobs(operators: Sequence[str], database: Database, device: str | None = None) -> list[Job]:
    """Problems of operators to measure again on a device, the largest contradiction first.

    Learns from four fifths of the measurements at a time, as `selector evaluate` does, which takes minutes
    for an operator of which much was measured. Operators of which too little was have none. Raises
    UnknownOperator, UnknownDevice and the errors of the database.
    """
    found: list[tuple[float, Job]] = []
    for name in operators:
        try:
            dataset, _ = load_measured(name, database, device)
        except TooFewProblems:
            continue
        found += _contradictions(dataset)
    return [job for _, job in sorted(found, key=lambda one: -one[0])]


def _contradictions(dataset: Dataset) -> Iterator[tuple[float, Job]]:
    """Loss of the cross-validated model's choice for each problem, with the measured candidates as a job."""
    from kernel_selector.kernels.measure.jobs import Job

    times = dataset.time_ms
    for rows, chosen in unseen_choices(dataset):
        loss = float(times[chosen] / times[rows].min()) - 1
        if loss > LEAST_LOSS:
            names = sorted(str(dataset.implementation[row]) for row in rows)
            yield loss, Job(dataset.records[rows[0]].problem, tuple(names))
