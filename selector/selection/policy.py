"""The decision: filter, weigh the evidence, keep the framework's default unless another is clearly better.

How evidence mixes among the candidates of one problem: the base is the best tier that covers the default
and at least one other candidate. Candidates that the base does not cover take their figures from the
next tiers, whose uncertainty is larger and must be exceeded by their advantage. Better tiers that cover
too little to compare are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ..cost_model.estimate import Estimate, Tier
from ..errors import NothingFits
from ..text.units import format_bytes
from .choice import Candidate

# a switch away from the default must gain more than this, however small the noise. With 3 % instead, of 7,950
# choices (linear layers, attention, GRUs, RNNs, batched products on an H200) 2.4 for 3.2 % took 2 % longer
# than the default, and 0.2 % more were not within 5 % of the best; in the mean both lose alike
LEAST_MARGIN = 0.01


class Question(NamedTuple):
    """Candidates and conditions of one decision.

    `counted_bytes(name)` is memory by counted work, for want of measurements.
    """

    default: str  # "" for an imported operator, of which no framework has one
    names: tuple[str, ...]  # the implementations that support the problem, sorted
    excluded: Mapping[str, str]  # the others, with the reason
    counted_bytes: Callable[[str], float]
    doubtful: Mapping[str, str] = MappingProxyType({})  # what to know when one of these is chosen
    objective: str = "time"
    limit_bytes: int | None = None
    override: str | None = None
    default_is_wrong: str = ""  # the reason, where the gate rejected the default at the problem or near it
    most_frequent_winner: str | None = None  # what to choose without a default, where nothing is known
    has_memory: bool = True  # whether estimates say anything of bytes

    @property
    def estimated(self) -> tuple[str, ...]:
        """The names of which figures are wanted: the default's where every candidate is excluded."""
        return self.names or (self.default,)


class Decision(NamedTuple):
    """The chosen name, where the decision rests, and the candidates to show, the chosen one first."""

    implementation: str
    source: str
    runner_up: str | None
    margin: float | None
    candidates: tuple[Candidate, ...]
    caveats: tuple[str, ...]


class Figures(NamedTuple):
    """Comparable estimates and the tiers that they come from, by implementation.

    `base` is None when too little is known to compare, and `doublings` is how far the problem is outside of
    what the base rests on. `shipped` names those of which the figures come with this package; `model` is the
    version of the cost model that was used, if one was.
    """

    base: str | None
    estimates: Mapping[str, Estimate]
    tiers: Mapping[str, Tier]  # of which each estimate is
    caveats: tuple[str, ...]
    shipped: frozenset[str] = frozenset()
    model: str | None = None
    doublings: float = 0.0


def combine(tiers: Iterable[Tier], names: tuple[str, ...], default: str) -> Figures:
    """Take each candidate's estimate from the tiers by the rule above; asks for no more tiers than needed."""
    base: Tier | None = None
    used: dict[str, Estimate] = {}
    taken_from: dict[str, Tier] = {}
    caveats: list[str] = []
    shipped: set[str] = set()
    models: list[str] = []
    passed_over: list[tuple[Tier, list[str]]] = []

    def take(tier: Tier, covered: Sequence[str]) -> None:
        fresh = [name for name in covered if name not in used] if used else covered
        for name in fresh:
            used[name] = tier.estimates[name]
            taken_from[name] = tier
        shipped.update(tier.shipped.intersection(fresh))
        if fresh and tier.model is not None:
            models.append(tier.model)
        if fresh or not tier.estimates:
            caveats.extend(tier.caveats)

    for tier in tiers:
        covered = [name for name in names if name in tier.estimates]
        comparable = len(covered) >= min(2, len(names)) and (default in covered or default not in names)
        if base is None and not comparable:
            passed_over.append((tier, covered))
            continue
        base = base or tier
        take(tier, covered)
        if len(used) == len(names):
            break
    if base is None:
        for tier, covered in passed_over:
            take(tier, covered)
    words, model = tuple(dict.fromkeys(caveats)), next(iter(models), None)
    source, doublings = (base.source, base.doublings) if base else (None, 0.0)
    return Figures(source, used, taken_from, words, frozenset(shipped), model, doublings)


def decide(question: Question, figures: Figures) -> Decision:
    """The decision on comparable figures. Raises NothingFits when a memory limit excludes everything."""
    if not question.default and figures.estimates:
        question = _of_known(question, figures)
    over = _over_limit(question, figures)
    free = [name for name in question.names if name not in over] if over else list(question.names)
    ranked = _ranked(question.objective, figures, free)
    caveats = list(figures.caveats)
    notes: dict[str, str] = {}
    if question.override is not None:
        chosen, source = question.override, "override"
        reason = over.pop(chosen, None) or question.excluded.get(chosen)
        if reason:
            caveats.append(f"{chosen} was asked for by name, although: {reason}.")
    elif not free:
        chosen, source = _last_resort(question, figures), "default"
        caveats.append(
            f"Every candidate is excluded; {chosen} is the framework's default, and excluded too: "
            f"{question.excluded.get(chosen, 'it is not among the candidates')}."
        )
    elif question.default_is_wrong and question.default not in over:
        chosen, source = _instead_of_a_wrong_default(question, figures, ranked, caveats)
    else:
        chosen, source, notes = _best(question, figures, free, ranked)
        if source == "default" and not question.default:
            caveats.append(f"{chosen} was the fastest on most of the problems that were measured there.")
        elif source == "default" and chosen != question.default:
            caveats.append(
                f"{question.default}, the framework's default, is excluded, and nothing is known of the "
                f"others: {chosen} needs the fewest bytes by count."
            )
    if chosen in question.doubtful:
        caveats.append(f"{chosen} {question.doubtful[chosen]}. Profile this problem to be sure.")
    if question.limit_bytes is not None and chosen not in figures.estimates:
        caveats.append("The memory limit was checked against counted bytes only: nothing was measured.")
    known = figures.estimates
    runner_up = next((name for name in ranked if name != chosen), None) if chosen in known else None
    return Decision(
        implementation=chosen,
        source=source,
        runner_up=runner_up,
        margin=None if runner_up is None else _advantage(question.objective, known[chosen], known[runner_up]),
        candidates=tuple(_candidates(question, figures, chosen, [*ranked, *sorted(free)], over, notes)),
        caveats=tuple(caveats),
    )


def _of_known(question: Question, figures: Figures) -> Question:
    """The question without the candidates of which nothing is known: there is no default to fall back to."""
    known = {*figures.estimates, question.override}
    unknown = [name for name in question.names if name not in known]
    return question._replace(
        names=tuple([name for name in question.names if name in known]),
        excluded={
            **question.excluded,
            **dict.fromkeys(unknown, "nothing is known of it on problems like this one"),
        },
    )


def _candidates(
    question: Question,
    figures: Figures,
    chosen: str,
    free: Sequence[str],
    over: Mapping[str, str],
    notes: Mapping[str, str],
) -> Iterator[Candidate]:
    """The chosen one, then by figure, then those without figures, then the excluded ones by name.

    `free` are those that could have been chosen, those with figures first and repeated at will; `over` those
    over the memory limit, with the reason.
    """
    reasons = {**question.excluded, **over}
    exclusions = {name: reasons[name] for name in sorted(reasons) if name != chosen}
    for name in dict.fromkeys((chosen, *free, *exclusions)):
        is_default, note, excluded = name == question.default, notes.get(name, ""), exclusions.get(name)
        estimate = figures.estimates.get(name)
        if estimate is None:
            yield Candidate(name=name, default=is_default, excluded=excluded, note=note)
            continue
        time, low, high, size, least, most, *_ = estimate
        source, memory = figures.tiers[name].source, (least, most)
        found = Candidate(name, is_default, source, time, (low, high), size, memory, excluded, note)
        yield found if question.has_memory else found._replace(memory_bytes=None, memory_interval_bytes=None)


def _instead_of_a_wrong_default(
    question: Question, figures: Figures, ranked: list[str], caveats: list[str]
) -> tuple[str, str]:
    """The best candidate of which something is known, however the default compares; else the default."""
    default, reason = question.default, question.default_is_wrong.rstrip(".")
    others = [name for name in ranked if name != default]
    if others:
        caveats.append(f"{default}, the framework's default, is not chosen: it {reason}.")
        return others[0], figures.tiers[others[0]].source
    if default in question.excluded:  # else it is among the doubtful, which is said of all of them
        caveats.append(
            f"{default}, the framework's default, stays for want of a correct candidate: it {reason}. "
            "Profile this problem."
        )
    return default, "default"


def _best(
    question: Question, figures: Figures, free: list[str], ranked: list[str]
) -> tuple[str, str, dict[str, str]]:
    """The choice among the free candidates, its source, and why better-looking ones were passed over."""
    default = question.default
    notes: dict[str, str] = {}
    if default not in free:
        if not ranked:
            least = min(free, key=lambda name: (question.counted_bytes(name), name))
            return question.most_frequent_winner or least, "default", notes
        return ranked[0], figures.tiers[ranked[0]].source, notes
    if figures.base is None or default not in figures.estimates:
        return default, "default", notes
    theirs = figures.estimates[default]
    for name in ranked:
        if name == default:
            break
        mine = figures.estimates[name]
        gain = _advantage(question.objective, mine, theirs)
        needed = _needed(question.objective, mine, theirs)
        if gain > needed:
            return name, figures.tiers[name].source, notes
        word = "smaller" if question.objective == "memory" else "faster"
        notes[name] = f"{gain:.1%} {word} than the default, within the noise of {needed:.1%}"
    return default, figures.tiers[default].source, notes


def least_gain(*noise: float) -> float:
    """The gain in time that a switch away from the framework's default must exceed, relative to the new time.

    noise: of the times compared, relative to them. Choices, plans and `optimize` switch by this rule alone.
    """
    return max((LEAST_MARGIN, *noise))


def _needed(objective: str, one: Estimate, other: Estimate) -> float:
    if objective == "memory":
        return max(one.memory_noise, other.memory_noise)
    return least_gain(one.noise, other.noise)


def _figure(objective: str, estimate: Estimate) -> float:
    return float(estimate.memory_bytes) if objective == "memory" else estimate.time_ms


def _ranked(objective: str, figures: Figures, names: list[str]) -> list[str]:
    """The names with figures, best first; equal memory by time, equal time by name."""
    known = figures.estimates
    if objective == "memory":
        order = sorted(
            [(known[name].memory_bytes, known[name].time_ms, name) for name in names if name in known]
        )
        return [name for _, _, name in order]
    return [name for _, name in sorted([(known[name].time_ms, name) for name in names if name in known])]


def _advantage(objective: str, one: Estimate, other: Estimate) -> float:
    """How much worse the other is than the one, relative to it."""
    mine, theirs = _figure(objective, one), _figure(objective, other)
    return theirs / mine - 1 if mine else (0.0 if theirs == mine else 1.0)


def _over_limit(question: Question, figures: Figures) -> dict[str, str]:
    """The candidates that do not fit, with the reason; an estimate counts with its uncertainty."""
    limit = question.limit_bytes
    if limit is None:
        return {}
    reasons = {}
    for name in question.names:
        need, basis = _need(question, figures, name)
        if need > limit:
            reasons[name] = f"needs {format_bytes(need)} ({basis}), more than {format_bytes(limit)}"
    return reasons


def _need(question: Question, figures: Figures, name: str) -> tuple[float, str]:
    estimate = figures.estimates.get(name)
    if estimate is None:
        return question.counted_bytes(name), "counted from the equations"
    basis = {
        "exact": "measured",
        "model": "predicted, upper end",
        "near": "scaled, upper end",
        "extrapolated": "extrapolated, upper end",
        "transfer": "carried over, upper end",
    }
    return estimate.high_bytes, basis[figures.tiers[name].source]


def _last_resort(question: Question, figures: Figures) -> str:
    """The default when everything failed; raises NothingFits when it is the limit that excludes."""
    if not question.names:
        return question.default
    needs = {name: _need(question, figures, name) for name in question.names}
    least = min(needs, key=lambda name: needs[name])
    need, basis = needs[least]
    words = f"{math.ceil(need)} bytes ({format_bytes(need)}, {basis}) of {least}"
    raise NothingFits(
        f"Nothing fits into memory={question.limit_bytes} bytes ({format_bytes(question.limit_bytes)}): the "
        f"least is {words}. Raise the limit, or ask for a smaller batch or sequence.",
        least=words,
    )
