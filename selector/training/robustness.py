"""Choices by predicted times alone, coverage of intervals, and repeated measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.contract.timing import undisturbed

from ..selection.policy import LEAST_MARGIN
from .fit import COVERAGE, AnyDataset, Errors, Flags, Floats, Fold, HeldOut, folds, held_out_shapes

Chooser = Callable[[list[int]], int]  # rows of one contest to the row that is chosen
LEAST_SAMPLES = 4  # of a measurement, for each half of them to say something


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Shares of unseen measurements inside their predicted intervals, which are made for COVERAGE."""

    time: float
    memory: float | None  # None where no bytes were measured

    def __str__(self) -> str:
        words = f"time {self.time:.1%}"
        words += "" if self.memory is None else f", memory {self.memory:.1%}"
        return f"Intervals made for {COVERAGE:.0%} of unseen measurements hold: {words}."


def contests(dataset: AnyDataset, use: Flags) -> list[list[int]]:
    """The rows where `use` holds, by contest."""
    found: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(use).tolist():
        found[int(dataset.contest[row])].append(row)
    return list(found.values())


def default_row(dataset: AnyDataset, rows: list[int]) -> int | None:
    """The row of the framework's default, if it is among these."""
    return next((row for row in rows if dataset.implementation[row] == dataset.operator.default), None)


def by_model(dataset: AnyDataset, predicted: Floats, noise: Errors) -> Chooser:
    """The rule of policy.decide for times that come from the model alone."""

    def choose(rows: list[int]) -> int:
        default = default_row(dataset, rows)
        for row in sorted(rows, key=lambda row: float(predicted[row])):
            if default is None or row == default:
                return row
            needed = max(LEAST_MARGIN, noise[str(dataset.implementation[row])]["time_noise"])
            if predicted[default] / predicted[row] - 1 > needed:
                return row
        raise AssertionError("the default is among the rows")

    return choose


def unseen_choices(dataset: AnyDataset) -> Iterator[tuple[list[int], int]]:
    """The rows of each contest, and which of them the model chooses that has not seen the problem."""
    held_out = held_out_shapes(dataset, memory=False)
    for test, noise in folds(dataset, held_out):
        choose = by_model(dataset, held_out.time_ms, noise)
        for rows in contests(dataset, test):
            yield rows, choose(rows)


def coverage(dataset: AnyDataset, held_out: HeldOut, parts: list[Fold]) -> Coverage:
    """Shares of measurements inside intervals that are made from the errors of the other folds."""

    def share(figure: str, predicted: Floats, measured: Floats) -> float:
        inside = np.zeros(len(measured), dtype=bool)
        for test, noise in parts:
            low, high = _factors(dataset, noise, figure)
            inside |= test & (measured >= predicted * low) & (measured <= predicted * high)
        return float(inside[held_out.tested].mean())

    return Coverage(
        time=share("time", held_out.time_ms, dataset.time_ms),
        memory=share("memory", held_out.memory_bytes, dataset.memory_bytes) if dataset.has_memory else None,
    )


def _factors(dataset: AnyDataset, noise: Errors, figure: str) -> NDArray[np.float64]:
    """The ends of each row's interval as factors on its prediction, shape [2, rows]."""
    if figure == "memory":
        ends = [one["interval"] for one in _memory(dataset, noise)]
    else:
        ends = [noise[str(name)]["time"] for name in dataset.implementation]
    return np.array(ends, dtype=np.float64).T


def _memory(dataset: AnyDataset, noise: Errors) -> list[dict[str, Any]]:
    """What is known of each row's error in memory."""
    rows = zip(dataset.implementation, dataset.situation, strict=True)
    return [noise[str(name)]["memory"][str(situation)] for name, situation in rows]


def measured_again(dataset: AnyDataset) -> list[float]:
    """Slowdowns of choosing by half of each measurement's samples, judged by the other half.

    What measurements can tell at all: no model of them can be expected to be judged better. Of the contests
    whose candidates all have samples enough.
    """
    samples = dataset.samples()
    if samples is None:
        return []
    everything = np.ones(len(samples), dtype=bool)
    found = []
    for rows in contests(dataset, everything):
        if len(rows) > 1 and all(len(samples[row]) >= LEAST_SAMPLES for row in rows):
            once, again = ([undisturbed(samples[row][start::2]) for row in rows] for start in (0, 1))
            found.append(again[once.index(min(once))] / min(again))
    return found
