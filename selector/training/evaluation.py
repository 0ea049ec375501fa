"""Quality of choices: distributions of slowdown against the best implementation, beside baselines."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .dataset import LEAST_PROBLEMS
from .estimator import CostModel
from .fit import (
    FAILS,
    AnyDataset,
    Errors,
    Fold,
    HeldOut,
    errors,
    flat,
    time_model,
    unseen_model,
    unseen_time_model,
)
from .memory_limits import UnderLimits
from .robustness import Chooser, Coverage, by_model, contests, default_row, measured_again
from .splits import Split
from .verdicts import Quality, Verdict, figures, quality
from .withheld import Replayed

if TYPE_CHECKING:
    from kernel_selector.db import StoredModel

WIDTH = 80
MODEL = "cost model"  # among the selectors that are compared
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The cost model and the baselines on the same problems, none of which they have seen."""

    held_out: str  # in words: "shapes", "the largest quarter by work", "implementation hoisted", ...
    selectors: Mapping[str, Quality]  # by selector
    unjudged: float = 0.0  # share of the cost model's choices that have no time there, and count as losses


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
    not_judged: Mapping[str, str] = field(default_factory=dict)  # the reason, by what was to be held out

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
        lines += [""] if self.not_judged else []
        for words, reason in self.not_judged.items():
            lines += textwrap.wrap(f"Not held out: {words}: {reason}", WIDTH, break_on_hyphens=False)
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
    if comparison.unjudged:
        words = "of the choices failed there or were never measured there: as slow as the slowest."
        lines.insert(1, f"  {comparison.unjudged:.1%} {words}")
    return lines + [
        f"  {name:24}{item.gmean:8.3f}{item.p95:8.3f}{item.p99:8.3f}{item.worst:8.3f}"
        f"{item.within_5_percent:11.1%}{item.top_1:10.1%}"
        for name, item in comparison.selectors.items()
    ]


class Found(NamedTuple):
    """Slowdowns by selector, and the verdict on each choice of ours, where it was made by the chooser."""

    slowdowns: dict[str, list[float]]
    verdicts: list[Verdict]

    def add(self, slowdowns: Mapping[str, list[float]], verdicts: Iterable[Verdict] = ()) -> None:
        """Addition of the slowdowns and verdicts of another part."""
        for name, values in slowdowns.items():
            self.slowdowns.setdefault(name, []).extend(values)
        self.verdicts.extend(verdicts)


def unseen_models(
    dataset: AnyDataset, held_out: HeldOut, parts: Sequence[Fold]
) -> Iterator[tuple[Flags, StoredModel]]:
    """The rows of each fold, with the model that has not seen them as a predictor reads it."""
    for number, (test, noise) in zip(sorted(held_out.models), parts, strict=True):
        yield test, unseen_model(dataset, ~test, held_out.models[number], noise)


def evaluate_shapes(dataset: AnyDataset, held_out: HeldOut, parts: list[Fold]) -> Found:
    """Judgement of every problem by the chooser and the baselines as they are without its fold."""
    found, replayed = Found({}, []), Replayed(dataset)
    for test, model in unseen_models(dataset, held_out, parts):
        _add_part(found, dataset, test, replayed.verdicts(test, model))
    again = measured_again(dataset)
    found.add({"measured once before": again} if again and found.slowdowns else {})
    return found


def evaluate_split(
    dataset: AnyDataset, held_out: HeldOut, split: Split, not_judged: dict[str, str] | None = None
) -> Found:
    """Slowdowns and verdicts of the parts of a split, each by what is left without it.

    A part that leaves fewer problems than a model learns from, or none to judge, is passed over, and so is
    one whose fitting fails: `not_judged` says so, by the words of the split. The cost model learns without
    related operators, which may have been measured where this was not.
    """
    found, replayed, reasons = Found({}, []), Replayed(dataset), list[str]()
    for number, test in enumerate(split.tests, 1):
        where = f"part {number} of {len(split.tests)}" if len(split.tests) > 1 else "it"
        left = len(set(dataset.problem[~test].tolist()))
        if not test.any():
            reasons.append(f"{where} has no problems")
        elif left < LEAST_PROBLEMS:
            reasons.append(f"{where} leaves {left} problems to learn from")
        else:
            try:
                model = _fitted(unseen_time_model(dataset, ~test), dataset, ~test)
            except FAILS as error:
                reasons.append(f"{where} leaves what could not be learned: {error}")
                continue
            noise = errors(dataset, held_out, ~test)
            stored = unseen_model(dataset, ~test, (flat(model), None), noise)
            _add_part(found, dataset, test, replayed.verdicts(test, stored, split.part))
    if reasons and not_judged is not None:
        not_judged[split.words] = f"{'; '.join(reasons)}."
    return found


def _add_part(found: Found, dataset: AnyDataset, test: Flags, verdicts: Sequence[Verdict]) -> None:
    """The verdicts on a part's choices, and the baselines as they are without it."""
    found.add({MODEL: [one.loss for one in verdicts]} if verdicts else {}, verdicts)
    found.add(_judge(dataset, test, _baselines(dataset, ~test)))


def _fitted(model: CostModel, dataset: AnyDataset, train: Flags) -> CostModel:
    rows = dataset.rows_without(~train)
    return model.fit(rows[train], dataset.time_ms[train], dataset.contest[train])


def evaluate_implementation(dataset: AnyDataset, noise: Errors, name: str) -> Comparison | None:
    """Slowdowns with one implementation's times predicted by a model that has not seen that implementation.

    Its columns are cleared, so that the model has its counted work alone to go by. Where it takes part, trees
    alone judge, see Network.residual: this model needs no network.
    """
    mine = dataset.implementation == name
    if mine.all() or name == dataset.operator.default:
        return None
    unfitted = time_model(dataset, int((~mine).sum()))
    unfitted.network = None
    model = _fitted(unfitted, dataset, ~mine)
    rows = dataset.rows_without(mine).copy()
    rows[np.ix_(mine, dataset.spec.implementation_columns)] = 0  # its name, and whose code it runs
    everything = np.ones(len(rows), dtype=bool)
    choosers = {MODEL: by_model(dataset, model.predict(rows), noise)}
    if dataset.operator.default:
        choosers["always the default"] = _by_default(dataset)
    return comparison(f"implementation {name}", _judge(dataset, everything, choosers))


def comparison(
    words: str, slowdowns: Mapping[str, list[float]], verdicts: Sequence[Verdict] = ()
) -> Comparison:
    """The distributions of slowdowns by selector, on what was held out in these words."""
    return Comparison(
        held_out=words,
        selectors={name: quality(values) for name, values in slowdowns.items()},
        unjudged=figures(verdicts)["unjudged"] if verdicts else 0.0,
    )


def _judge(dataset: AnyDataset, test: Flags, choosers: Mapping[str, Chooser]) -> dict[str, list[float]]:
    """Slowdowns by selector over the contests of the test rows that have a choice to make."""
    asked = [rows for rows in contests(dataset, test) if len(rows) > 1]
    times = dataset.time_ms
    return {
        name: [float(times[choose(rows)] / times[rows].min()) for rows in asked]
        for name, choose in choosers.items()
        if asked
    }


def _baselines(dataset: AnyDataset, train: Flags) -> dict[str, Chooser]:
    """What can be had without a model, by the rows where `train` holds."""
    return {
        "most frequent winner": _by_frequency(dataset, train),
        "nearest neighbour": _by_neighbour(dataset, train),
        **({"always the default": _by_default(dataset)} if dataset.operator.default else {}),
    }


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
