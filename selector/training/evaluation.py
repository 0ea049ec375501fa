"""Quality of choices: distributions of slowdown against the best implementation, beside baselines."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cost_model.estimate import LEAST_GAIN
from .estimator import CostModel
from .fit import AnyDataset, Errors, Fold, HeldOut, time_model
from .robustness import Chooser, Coverage, UnderLimits, by_model, contests, default_row, measured_again

WIDTH = 80
MODEL = "cost model"  # among the selectors that are compared
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Quality:
    """The slowdown of choices against the best implementation (1 = always the best), over `problems`."""

    problems: int
    gmean: float
    p90: float
    p95: float
    p99: float
    worst: float
    within_5_percent: float  # share of problems
    top_1: float  # share of problems; misleads where implementations tie


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The cost model and the baselines on the same problems, none of which they have seen."""

    held_out: str  # in words: "shapes", "the largest quarter by work", "implementation hoisted", ...
    selectors: Mapping[str, Quality]  # by selector


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The quality of a cost model's choices for an operator, and the data it was judged on."""

    operator: str
    snapshot: str
    records: int
    problems: int
    devices: tuple[str, ...]
    left_out: Mapping[str, int]  # good records that were of no use, by reason
    time_error: float  # median relative error of the time of unseen problems
    memory_error: float | None  # None where no bytes were measured
    coverage: Coverage | None  # None where intervals were not judged
    under_limits: UnderLimits | None  # None where no contest has a choice to make
    comparisons: tuple[Comparison, ...]

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready data."""
        return asdict(self) | {
            "devices": list(self.devices),
            "comparisons": list(map(asdict, self.comparisons)),
        }

    def table(self) -> str:
        """Text of the figures: one block for each way of holding out."""
        facts = [
            f"{self.operator}: {self.problems} problems, {self.records} records, {', '.join(self.devices)}.",
            *(f"Left out: {count} records {reason}." for reason, count in self.left_out.items()),
            f"Median error on unseen problems: time {self.time_error:.1%}, memory "
            f"{'not measured' if self.memory_error is None else format(self.memory_error, '.1%')}.",
            *([str(self.coverage)] if self.coverage else []),
            *([str(self.under_limits)] if self.under_limits else []),
            "Slowdown against the best implementation, 1.000 at best, on what was held out from learning:",
        ]
        lines = [line for fact in facts for line in textwrap.wrap(fact, WIDTH, break_on_hyphens=False)]
        for comparison in self.comparisons:
            lines += ["", *_block(comparison)]
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """The data and the stored model of a training run, with its evaluation on unseen problems."""

    operator: str
    version: str
    records: int
    problems: int
    implementations: tuple[str, ...]
    left_out: dict[str, int]
    seconds: float
    size_bytes: int
    evaluation: Evaluation

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready data."""
        return asdict(self) | {
            "implementations": list(self.implementations),
            "evaluation": self.evaluation.to_dict(),
        }


def _block(comparison: Comparison) -> list[str]:
    count = max(quality.problems for quality in comparison.selectors.values())
    lines = [
        f"Held out: {comparison.held_out} ({count} problems)",
        f"  {'':24}{'gmean':>8}{'p95':>8}{'p99':>8}{'worst':>8}{'within 5%':>11}{'best hit':>10}",
    ]
    return lines + [
        f"  {name:24}{item.gmean:8.3f}{item.p95:8.3f}{item.p99:8.3f}{item.worst:8.3f}"
        f"{item.within_5_percent:11.1%}{item.top_1:10.1%}"
        for name, item in comparison.selectors.items()
    ]


def quality(slowdowns: list[float]) -> Quality:
    """The distribution of slowdowns, each at least 1."""
    values = np.array(slowdowns)
    return Quality(
        problems=len(values),
        gmean=float(np.exp(np.log(values).mean())),
        p90=float(np.quantile(values, 0.9)),
        p95=float(np.quantile(values, 0.95)),
        p99=float(np.quantile(values, 0.99)),
        worst=float(values.max()),
        within_5_percent=float((values <= 1.05).mean()),
        top_1=float((values == 1).mean()),
    )


def evaluate_shapes(dataset: AnyDataset, held_out: HeldOut, parts: list[Fold]) -> dict[str, list[float]]:
    """Slowdowns by selector: every problem is judged by models and baselines made from the other folds."""
    slowdowns: dict[str, list[float]] = defaultdict(list)
    for test, noise in parts:
        for name, values in _judge(dataset, held_out.time_ms, noise, ~test, test).items():
            slowdowns[name] += values
    again = measured_again(dataset)
    return {**slowdowns, **({"measured once before": again} if again and slowdowns else {})}


def evaluate_split(dataset: AnyDataset, noise: Errors, tests: Sequence[Flags]) -> dict[str, list[float]]:
    """Slowdowns by selector of models, each trained where a test is false and judged where it is true.

    A test that holds for no row, or for all of them, is passed over.

    The cost model abstains, or wants a larger gain, where it would when asked. It learns without related
    operators, which may have been measured where this was not.
    """
    slowdowns: dict[str, list[float]] = defaultdict(list)
    for test in tests:
        if not test.any() or test.all():
            continue
        model = _fitted(time_model(dataset, int((~test).sum())), dataset, ~test)
        predicted = np.zeros(len(dataset.rows))
        predicted[test] = model.predict(dataset.rows[test], dataset.contest[test])
        for name, values in _judge(dataset, predicted, noise, ~test, test, in_range=False).items():
            slowdowns[name] += values
    return slowdowns


def _fitted(model: CostModel, dataset: AnyDataset, train: Flags) -> CostModel:
    return model.fit(dataset.rows[train], dataset.time_ms[train], dataset.contest[train])


def evaluate_implementation(dataset: AnyDataset, noise: Errors, name: str) -> Comparison | None:
    """Slowdowns with one implementation's times predicted by a model that has not seen that implementation.

    Its columns are cleared, so that the model has its counted work alone to go by. Where it takes part, trees
    alone judge, see Network.residual: this model needs no network.
    """
    mine = dataset.implementation == name
    if mine.all() or name == dataset.operator.default:
        return None
    unfitted = time_model(dataset, int((~mine).sum()))
    unfitted.input_columns = None
    model = _fitted(unfitted, dataset, ~mine)
    rows = dataset.rows.copy()
    rows[np.ix_(mine, dataset.spec.implementation_columns)] = 0  # its name, and whose code it runs
    everything = np.ones(len(rows), dtype=bool)
    slowdowns = _judge(dataset, model.predict(rows), noise, ~mine, everything, baselines=False)
    return comparison(f"implementation {name}", slowdowns)


def comparison(words: str, slowdowns: Mapping[str, list[float]]) -> Comparison:
    """The distributions of slowdowns by selector, on what was held out in these words."""
    return Comparison(held_out=words, selectors={name: quality(values) for name, values in slowdowns.items()})


def _judge(
    dataset: AnyDataset,
    predicted: Floats,
    noise: Errors,
    train: Flags,
    test: Flags,
    *,
    in_range: bool = True,
    baselines: bool = True,
) -> dict[str, list[float]]:
    """Slowdowns by selector over the contests of the test rows that have a choice to make."""
    asked = [rows for rows in contests(dataset, test) if len(rows) > 1]
    choosers: dict[str, Chooser] = {MODEL: by_model(dataset, predicted, noise)}
    if not in_range:
        choosers = {MODEL: _anywhere(dataset, train, predicted, noise)}
    if baselines:
        choosers["most frequent winner"] = _by_frequency(dataset, train)
        choosers["nearest neighbour"] = _by_neighbour(dataset, train)
    if dataset.operator.default:
        choosers["always the default"] = _by_default(dataset)
    times = dataset.time_ms
    return {
        name: [float(times[choose(rows)] / times[rows].min()) for rows in asked]
        for name, choose in choosers.items()
        if asked
    }


def _anywhere(dataset: AnyDataset, train: Flags, predicted: Floats, noise: Errors) -> Chooser:
    """By the model of the trained rows, which wants a larger gain outside of the sizes that it has seen.

    Where it abstains, the default; without one the most frequent winner.
    """
    domain = dataset.domain(train)
    inside = by_model(dataset, predicted, noise)
    extrapolated = by_model(dataset, predicted, noise, LEAST_GAIN)
    otherwise = _by_default(dataset) if dataset.operator.default else _by_frequency(dataset, train)

    def choose(rows: list[int]) -> int:
        problem, device = dataset.question(rows[0])
        if domain.outside(problem, device):
            return otherwise(rows)
        return (extrapolated if domain.beyond(problem, device) else inside)(rows)

    return choose


def _by_default(dataset: AnyDataset) -> Chooser:
    def choose(rows: list[int]) -> int:
        default = default_row(dataset, rows)
        return rows[0] if default is None else default

    return choose


def _by_frequency(dataset: AnyDataset, train: Flags) -> Chooser:
    wins: Counter[str] = Counter()
    for rows in contests(dataset, train):
        wins[str(dataset.implementation[min(rows, key=lambda row: float(dataset.time_ms[row]))])] += 1

    def choose(rows: list[int]) -> int:
        return max(rows, key=lambda row: (wins[str(dataset.implementation[row])], -row))

    return choose


def _by_neighbour(dataset: AnyDataset, train: Flags) -> Chooser:
    """The fastest on the nearest trained problem of the same structure, however far."""
    nearest, by_default = dataset.nearest(train), _by_default(dataset)

    def choose(rows: list[int]) -> int:
        times = {str(dataset.implementation[row]): float(dataset.time_ms[row]) for row in nearest(rows[0])}
        named = [row for row in rows if str(dataset.implementation[row]) in times]
        return min(named, key=lambda row: times[str(dataset.implementation[row])], default=by_default(rows))

    return choose
