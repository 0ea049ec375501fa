"""Robustness of choices: coverage of intervals, random memory limits, and repeated measurements."""

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
LEAST_SPAN = 1.01  # of what the candidates of a contest need, for a limit between them to decide anything
LIMITS = 8  # random memory limits for each contest
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


@dataclass(frozen=True, kw_only=True)
class UnderLimits:
    """Choices by unseen predictions under random memory limits, LIMITS for each contest.

    `exceeded` is the share of choices that need more than the limit when run; `refused` the share of limits
    into which something fits, but nothing was expected to; `gmean` the slowdown of the choices that fit
    against the fastest that does.
    """

    choices: int
    exceeded: float
    refused: float
    gmean: float

    def __str__(self) -> str:
        return (
            f"Under {self.choices} random memory limits: {self.exceeded:.2%} of choices exceed theirs, "
            f"{self.refused:.2%} are refused although something fits, slowdown {self.gmean:.3f}."
        )


def contests(dataset: AnyDataset, use: Flags) -> list[list[int]]:
    """The rows where `use` holds, by contest."""
    found: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(use).tolist():
        found[int(dataset.contest[row])].append(row)
    return list(found.values())


def default_row(dataset: AnyDataset, rows: list[int]) -> int | None:
    """The row of the framework's default, if it is among these."""
    return next((row for row in rows if dataset.implementation[row] == dataset.operator.default), None)


def by_model(dataset: AnyDataset, predicted: Floats, noise: Errors, least: float = LEAST_MARGIN) -> Chooser:
    """The rule of policy.decide for times that come from the model alone; `least` is the least gain."""

    def choose(rows: list[int]) -> int:
        default = default_row(dataset, rows)
        for row in sorted(rows, key=lambda row: float(predicted[row])):
            if default is None or row == default:
                return row
            needed = max(least, noise[str(dataset.implementation[row])]["time_noise"])
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


def under_limits(dataset: AnyDataset, held_out: HeldOut, parts: list[Fold]) -> UnderLimits | None:
    """Choices under limits drawn, on a logarithmic scale, from what the contest's candidates need.

    A choice must be expected to fit with its uncertainty, as in policy.decide. None where no limit decides
    anything, and where no bytes were measured.
    """
    if not dataset.has_memory:
        return None
    draw, needs = np.random.default_rng(0), dataset.memory_bytes
    limits = choices = exceeded = 0
    slowdowns: list[float] = []
    for test, noise in parts:
        expected = held_out.memory_bytes * np.array([one["safe"] for one in _memory(dataset, noise)])
        model = by_model(dataset, held_out.time_ms, noise)
        for rows in (rows for rows in contests(dataset, test) if len(rows) > 1):
            least, most = needs[rows].min(), needs[rows].max()
            if most < least * LEAST_SPAN:
                continue
            for limit in least * (most / least) ** draw.random(LIMITS):
                limits += 1
                allowed = [row for row in rows if expected[row] <= limit]
                if not allowed:
                    continue
                chosen, choices = model(allowed), choices + 1
                if needs[chosen] > limit:
                    exceeded += 1
                else:
                    fastest = min(dataset.time_ms[row] for row in rows if needs[row] <= limit)
                    slowdowns.append(float(dataset.time_ms[chosen] / fastest))
    if not limits:
        return None
    return UnderLimits(
        choices=choices,
        exceeded=exceeded / max(choices, 1),
        refused=1 - choices / limits,
        gmean=float(np.exp(np.log(slowdowns or [1.0]).mean())),
    )


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
