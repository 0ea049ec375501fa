"""Choices for many questions at once, where nothing but the cost model has anything to say.

So are most questions of a large batch. What is shown of a choice at once is worked out on columns; its other
candidates are described when somebody looks, and by the decision that every single question takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.contract import SelectorError

from .alike import timed_alike
from .candidates import Candidate, Candidates
from .choice import Choice
from .deciding import Decided, decided_by_time
from .evidence import Tier
from .policy import combine, decide
from .predicted import Predicted, Predictions
from .preparing import Opened, circumstances, question_of
from .reading import MANY, Reading

if TYPE_CHECKING:
    from .knowledge import Knowledge

Ready = tuple[Opened, Predicted, Tier]


def quiet_ones(knowledge: Knowledge, opened: Sequence[Opened | SelectorError]) -> set[int]:
    """The places of questions that ask for times alone, and of whose problems no measurement says anything.

    Raises Changed. Few of one operator and device are not worth to be looked at together.
    """
    if len(opened) < MANY:
        return set()
    groups: dict[tuple[int, int], dict[int, Opened]] = defaultdict(dict)
    for index, one in enumerate(opened):
        if isinstance(one, Opened) and one.request.is_plain:
            groups[id(one.table), id(one.request.where.device)][index] = one
    return {
        index for members in groups.values() if len(members) >= MANY for index in _quiet(knowledge, members)
    }


def _quiet(knowledge: Knowledge, opened: Mapping[int, Opened]) -> Iterator[int]:
    first = next(iter(opened.values()))
    operator, device = first.table.operator, first.request.where.device
    try:
        quiet = knowledge.quiet(operator.name, device.key)
    except SelectorError:  # which each of the questions will meet
        return
    default, has_alike = operator.default, "eps" in first.table.columns
    flags = quiet.of_each(first.table.part([one.place for one in opened.values()]), device)
    for (index, one), is_quiet in zip(opened.items(), flags, strict=True):
        if not is_quiet or default not in one.names:
            continue
        if not has_alike or timed_alike(one.request.problem) is one.request.problem:
            yield index


class Settled(NamedTuple):
    """Questions by their places whose candidates one cost model knows all, and how they are decided."""

    members: Mapping[int, Ready]
    together: Predictions
    decided: Decided

    @property
    def chosen(self) -> tuple[Predictions, NDArray[np.intp]]:
        """The rows of which more will be shown than their times."""
        return self.together, np.array(self.decided.chosen)


def settled(
    asked: Mapping[int, tuple[Opened | SelectorError, Tier | SelectorError | None]],
) -> list[Settled]:
    """Those of quiet questions, by their places, that can be decided together."""
    groups: dict[int, dict[int, Ready]] = defaultdict(dict)
    for index, (one, tier) in asked.items():
        if not isinstance(one, Opened) or not isinstance(tier, Tier):
            continue
        found = tier.estimates
        if isinstance(found, Predicted) and found.names == one.names:
            groups[id(found.together)][index] = one, found, tier
    return [ready for group in groups.values() if (ready := _settled(group)) is not None]


def _settled(group: Mapping[int, Ready]) -> Settled | None:
    (first, predicted, _) = next(iter(group.values()))
    together, default = predicted.together, first.table.operator.default
    defaults = together.bounds[:-1]  # of questions that are not in the group any row does
    for one, found, _ in group.values():
        defaults[found.place] += one.names.index(default)
    decided = decided_by_time(together, defaults)
    return None if decided is None else Settled(group, together, decided)


def choices(knowledge: Knowledge, group: Settled) -> dict[int, Choice]:
    """The choices for questions that are settled, and of whose choices the bytes were looked up."""
    together, decided = group.together, group.decided
    times = together.times[decided.chosen, :3].tolist()
    sizes = together.sizes(np.array(decided.chosen))[:, :3].astype(np.int64).tolist()
    lows = together.lowest_beside(decided.chosen)
    shared: dict[object, dict[str, Any]] = {}
    told = {}
    for index, (one, found, tier) in group.members.items():
        request, place, names = one.request, found.place, found.names
        alike = id(request.where), request.operator_assumed, id(tier.caveats)
        if alike not in shared:
            shared[alike] = _shared(knowledge, one, tier)
        start, other = together.bounds[place], decided.runner_up[place]
        (time, low, high), (size, least, most) = times[place], sizes[place]
        fields = {
            **shared[alike],
            "problem": request.problem,
            "implementation": names[decided.chosen[place] - start],
            "time_ms": time,
            "time_interval_ms": (low, high),
            "memory_bytes": size,
            "memory_interval_bytes": (least, most),
            "runner_up": None if other < 0 else names[other - start],
            "margin": None if other < 0 else decided.margin[place],
            "candidates": Later(one, tier, lows[place]),
        }
        told[index] = Choice.made(fields)
    return told


def _shared(knowledge: Knowledge, one: Opened, tier: Tier) -> dict[str, Any]:
    """What the choices of one group have in common."""
    request = one.request
    predictor = knowledge.predictor(request.problem.operator)
    return {
        "device": request.where.device,
        "torch_device": request.where.torch_device,
        "source": tier.source,
        "objective": request.objective,
        "memory_limit_bytes": request.limit_bytes,
        "snapshot": knowledge.snapshot,
        "model_version": predictor.version if predictor else None,
        "caveats": (*knowledge.caveats, *circumstances(knowledge, request), *tier.caveats),
        "operator_assumed": request.operator_assumed,
    }


class Later(Candidates):
    """The candidates of a choice, for when somebody looks. It keeps no more than describing them takes."""

    def __init__(self, one: Opened, tier: Tier, lowest_ms_of_others: float) -> None:
        self._request, self._considered = one.request, one.considered
        self._tier, self._lowest_ms_of_others = tier, lowest_ms_of_others

    @cached_property
    def _items(self) -> tuple[Candidate, ...]:
        reading = Reading.of(self._request.problem)
        question = question_of(self._request, reading, self._considered, {}, {})
        figures = combine([self._tier], question.names, question.default)
        return tuple(decide(question, figures).candidates)

    def exclusions(self) -> dict[str, str]:
        """As in `Candidates`: the refusals, since nothing failed and no limit is given."""
        return dict(self._considered.refused)

    def lowest_ms(self) -> float:
        """As in `Candidates`."""
        return self._lowest_ms_of_others
