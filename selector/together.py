"""Choices for many questions at once, where nothing but the cost model has anything to say.

So are most questions of a large batch. What is shown of a choice at once is worked out on columns; its other
candidates are described when somebody looks, and by the decision that every single question takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.contract import SelectorError

from .alike import timed_alike
from .choice import Choice
from .deciding import Decided, decided_by_time
from .evidence import Tier
from .predicted import Predicted, Predictions
from .preparing import Opened, circumstances
from .reading import MANY, places_of
from .shown import Shown

if TYPE_CHECKING:
    from .knowledge import Knowledge

Ready = tuple[Opened, Predicted, Tier]


def quiet_ones(knowledge: Knowledge, groups: Iterable[Mapping[int, Opened]]) -> set[int]:
    """The places of questions that ask for times alone, and of whose problems no measurement says anything.

    The questions of a group are about one operator and device. Few are not worth to be looked at together.
    Raises Changed.
    """
    plain = [{index: one for index, one in group.items() if one.request.is_plain} for group in groups]
    return {index for group in plain if len(group) >= MANY for index in _quiet(knowledge, group)}


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


def settled(asked: Mapping[int, tuple[Opened, Tier | SelectorError | None]]) -> list[Settled]:
    """Those of quiet questions, by their places, that can be decided together."""
    groups: dict[int, dict[int, Ready]] = defaultdict(dict)
    for index, (one, tier) in asked.items():
        if not isinstance(tier, Tier):
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
    indices, members = list(group.members), list(group.members.values())
    keys = [
        (id(one.request.where), one.request.operator_assumed, id(tier.caveats)) for one, _, tier in members
    ]
    told: dict[int, Choice] = {}
    for places in places_of(keys).values():
        shown = _shown(knowledge, group, [members[place] for place in places])
        told |= zip([indices[place] for place in places], map(Choice.made, shown.at_once()), strict=True)
    return told


def _shown(knowledge: Knowledge, group: Settled, members: Sequence[Ready]) -> Shown:
    """What is shown of the choices for some of a group, which are alike in all that is not in columns."""
    together, (chosen, runner_up, margins) = group.together, group.decided
    lows, starts = together.lowest_beside(chosen), together.bounds
    places = [found.place for _, found, _ in members]
    rows = np.array([chosen[place] for place in places])
    others = [runner_up[place] for place in places]
    names = [
        (one.names[chosen[place] - starts[place]], None if other < 0 else one.names[other - starts[place]])
        for place, other, (one, _, _) in zip(places, others, members, strict=True)
    ]
    one, _, tier = members[0]
    return Shown(
        _shared(knowledge, one, tier),
        [(one.request, one.considered, tier) for one, _, tier in members],
        names,
        times=together.times[rows, :3],
        sizes=together.sizes(rows)[:, :3].astype(np.int64),
        margins=[None if other < 0 else margins[place] for place, other in zip(places, others, strict=True)],
        lows=lows[places],
    )


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
