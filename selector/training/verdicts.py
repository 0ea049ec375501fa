"""Verdicts on choices: what each loses against the fastest measured candidate, and where losses come from."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, SelectorError

from ..selection.choice import Choice
from ..selection.query import Query

SIZES_MS = {"below 0.1 ms": 0.1, "below 1 ms": 1.0, "1 ms or longer": float("inf")}
PAIRS = 20  # that are named, of chosen and fastest implementation
WITHIN = 1.05  # times the fastest
LOST = math.nextafter(WITHIN, 2)  # at least this is lost where nothing is known of a choice
WORSE = 1.01  # times torch's own
NOTHING: Mapping[str, Any] = MappingProxyType({})


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


def quality(slowdowns: Sequence[float]) -> Quality:
    """The distribution of slowdowns, each at least 1."""
    values = np.array(slowdowns)
    return Quality(
        problems=len(values),
        gmean=float(np.exp(np.log(values).mean())),
        p90=float(np.quantile(values, 0.9)),
        p95=float(np.quantile(values, 0.95)),
        p99=float(np.quantile(values, 0.99)),
        worst=float(values.max()),
        within_5_percent=float((values <= WITHIN).mean()),
        top_1=float((values == 1).mean()),
    )


class Contest(NamedTuple):
    """One problem on one device with the times in ms of its implementations, taken together.

    `samples` has the number of samples behind each time; `outcomes` how the other implementations ended.
    """

    problem: Problem
    device: Device | str
    times: Mapping[str, float]
    samples: Mapping[str, int] = NOTHING
    outcomes: Mapping[str, str] = NOTHING

    @property
    def query(self) -> Query:
        """The question that a user asks about it."""
        return Query(
            hyperparameters=dict(self.problem.as_dict), operator=self.problem.operator, device=self.device
        )


class Verdict(NamedTuple):
    """Loss of one choice on one problem; `slowdown` is None where the choice has no good time there.

    `outcome` is then what became of the choice; `slowest` is the slowdown of the slowest candidate, and
    `samples` the least number behind the times of the choice and of the fastest.
    """

    problem: Problem
    device_key: str
    chosen: str
    source: str
    fastest: str
    fastest_ms: float
    slowdown: float | None
    default_slowdown: float | None
    slowest: float
    samples: int = 0
    outcome: str = ""

    @property
    def loss(self) -> float:
        """The slowdown; where the choice has none that of the slowest candidate, and outside of 5 %."""
        return max(self.slowest, LOST) if self.slowdown is None else self.slowdown


def verdict(contest: Contest, answer: Choice | SelectorError) -> Verdict:
    """The verdict on what a user gets; an error is a choice that nothing was measured of."""
    is_choice = isinstance(answer, Choice)
    chosen = answer.implementation if isinstance(answer, Choice) else type(answer).__name__
    times, best = contest.times, min(contest.times.values())
    fastest = min(times, key=lambda name: times[name])
    operator = registry.operators().get(contest.problem.operator)
    default = times.get(operator.default) if operator else None  # an imported one has none
    mine = times.get(chosen)
    return Verdict(
        problem=contest.problem,
        device_key=contest.device.key if isinstance(contest.device, Device) else contest.device,
        chosen=chosen,
        source=answer.source if isinstance(answer, Choice) else "error",
        fastest=fastest,
        fastest_ms=best,
        slowdown=mine and mine / best,
        default_slowdown=default and default / best,
        slowest=max(times.values()) / best,
        samples=min(contest.samples.get(name, 0) for name in (chosen, fastest)) if mine else 0,
        outcome=""
        if mine
        else (contest.outcomes.get(chosen, "not measured") if is_choice else str(answer)[:80]),
    )


GROUPS: Mapping[str, Callable[[Verdict], str]] = {
    "source": lambda one: one.source,
    "operator": lambda one: one.problem.operator,
    "size": lambda one: next(name for name, most in SIZES_MS.items() if one.fastest_ms < most),
    "dtype": lambda one: _value(one, "dtype"),
    "mode": lambda one: _value(one, "mode"),
    "device": lambda one: one.device_key,
}


def _value(one: Verdict, name: str) -> str:
    """A hyperparameter's value as text, "none" of an imported operator that has no such."""
    return str(one.problem[name]) if name in one.problem else "none"


def grouped(verdicts: Iterable[Verdict], key: Callable[[Verdict], str]) -> dict[str, Any]:
    """The figures of each group."""
    found: dict[str, list[Verdict]] = defaultdict(list)
    for one in verdicts:
        found[key(one)].append(one)
    return {name: figures(each) for name, each in sorted(found.items())}


def figures(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The distribution of slowdowns, sampling errors of its mean and share, the share of unjudged choices.

    `..._with_unjudged` count those as losses: outside of 5 %, and as slow as the slowest candidate.
    """
    losses = [one.slowdown for one in verdicts if one.slowdown is not None]
    found = {"problems": len(verdicts), "unjudged": round(1 - len(losses) / len(verdicts), 4)}
    if not losses:
        return found
    spread = quality(losses)
    worse = [
        one.slowdown > WORSE * one.default_slowdown
        for one in verdicts
        if one.slowdown is not None and one.default_slowdown is not None
    ]
    within = spread.within_5_percent
    return found | {
        "gmean": round(spread.gmean, 4),
        "gmean_error": round(float(np.std(np.log(losses)) / len(losses) ** 0.5), 4),
        "p95": round(spread.p95, 3),
        "p99": round(spread.p99, 3),
        "within_5_percent": round(within, 4),
        "within_5_percent_error": round((within * (1 - within) / len(losses)) ** 0.5, 4),
        "slower_than_default": round(float(np.mean(worse)), 4) if worse else None,
        "gmean_with_unjudged": round(quality([one.loss for one in verdicts]).gmean, 4),
        "within_5_percent_with_unjudged": round(within * len(losses) / len(verdicts), 4),
    }


def unjudged(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Number of choices that have no good time, by implementation and what became of it."""
    found = Counter(
        f"{one.problem.operator}.{one.chosen}: {one.outcome}" for one in verdicts if one.slowdown is None
    )
    return dict(found.most_common())


def pairs(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Chosen and fastest implementations by their share of the whole loss, the largest first.

    `samples` is the median of those behind the two times.
    """
    found: dict[tuple[str, str, str], list[Verdict]] = defaultdict(list)
    for one in verdicts:
        if one.slowdown is not None and one.slowdown > 1:
            found[one.problem.operator, one.chosen, one.fastest].append(one)
    losses = {key: sum(float(np.log(one.loss)) for one in each) for key, each in found.items()}
    total = sum(losses.values())
    return [
        {
            "operator": operator,
            "chosen": chosen,
            "fastest": fastest,
            "problems": len(each := found[operator, chosen, fastest]),
            "share": round(losses[operator, chosen, fastest] / total, 4),
            "samples": int(np.median([one.samples for one in each])),
        }
        for operator, chosen, fastest in sorted(found, key=lambda key: -losses[key])[:PAIRS]
    ]


def summed_up(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """All figures of verdicts: together, by each of GROUPS, the unjudged ones and the pairs that lose."""
    return {
        "all": figures(verdicts),
        **{name: grouped(verdicts, key) for name, key in GROUPS.items()},
        "unjudged": unjudged(verdicts),
        "pairs": pairs(verdicts),
    }
