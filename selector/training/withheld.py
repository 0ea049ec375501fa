"""The chooser's answers from what is left of a database when a part of it is withheld.

This is `Selector.choose` itself: the measurements that are left, failures and verdicts of the gate among
them, and a cost model that has learned from these alone, are the body of evidence that it answers from.
Operators of ours and imported ones are judged alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernel_selector.db import StoredModel
from kernel_selector.kernels.contract import Device, Problem

from ..errors import LeakedProblems
from ..selection.answer_cache import Answer, Answers
from ..selection.knowledge import Knowledge
from ..selection.neighbours import timed_alike
from ..selection.query import Query
from .dataset import Withheld
from .fit import AnyDataset, Flags
from .robustness import contests
from .verdicts import Contest, Verdict, verdict

MOST_ASKED = 100_000  # candidates of questions that are asked at once, which bounds the memory


def of_problem(problem: Problem, _device: Device) -> object:
    """The problem itself, the same for those that take the same time."""
    return timed_alike(problem).values


def of_device(_problem: Problem, device: Device) -> object:
    """The kind of device."""
    return device.key


def of_host(_problem: Problem, device: Device) -> object:
    """The device, told apart by its host."""
    return device.fingerprint


class Replayed:
    """Questions about the contests of a dataset, each to what is left when some of them are withheld."""

    def __init__(self, dataset: AnyDataset) -> None:
        self._dataset = dataset

    def contests(self, test: Flags) -> list[tuple[list[int], Contest]]:
        """The contests that have a choice to make, each with its rows."""
        data, found = self._dataset, []
        for rows in contests(data, test):
            if len(rows) < 2:
                continue
            problem, device = data.question(rows[0])
            names = data.implementation[rows].tolist()
            contest = Contest(
                problem,
                device if device.kind else device.name,  # nothing else is known of an imported one
                dict(zip(names, data.time_ms[rows].tolist(), strict=True)),
                dict(zip(names, map(data.sample_count, rows), strict=True)),
                data.outcomes(rows[0]),
            )
            found.append((rows, contest))
        return found

    def answers(
        self, test: Flags, model: StoredModel, queries: Sequence[Query], part: Withheld = of_problem
    ) -> list[Answer]:
        """The answers to questions about what is withheld. Raises LeakedProblems where it is not."""
        answers = Answers(self._left(test, model, part), lambda _: None)
        batch = max(MOST_ASKED // len(self._dataset.implementations), 1)
        batches = [queries[start : start + batch] for start in range(0, len(queries), batch)]
        return [answer for each in batches for answer in answers.each(each)]

    def verdicts(self, test: Flags, model: StoredModel, part: Withheld = of_problem) -> list[Verdict]:
        """The verdict on each contest of the test rows, of which neither evidence nor model has seen any.

        Raises LeakedProblems where some were to be learned from.
        """
        asked = [contest for _, contest in self.contests(test)]
        found = self.answers(test, model, [one.query for one in asked], part)
        return [verdict(*both) for both in zip(asked, found, strict=True)]

    def _left(self, test: Flags, model: StoredModel, part: Withheld) -> Knowledge:
        parts = self._dataset.parts(part)
        withheld = {parts[row] for row in np.flatnonzero(test).tolist()}
        require_apart(self._dataset, parts, test)
        return Knowledge(self._dataset.left(part, withheld, model), shipped=False)


def require_apart(dataset: AnyDataset, parts: Sequence[object], test: Flags) -> None:
    """Raise LeakedProblems where a part is on both sides: among what is judged, and what is learned from."""
    sides: tuple[dict[object, int], dict[object, int]] = {}, {}
    for row, (part, judged) in enumerate(zip(parts, test.tolist(), strict=True)):
        sides[judged].setdefault(part, row)
    leaked = sides[0].keys() & sides[1].keys()
    if leaked:
        problem, device = dataset.question(sides[1][min(leaked, key=str)])
        raise LeakedProblems(
            f"{len(leaked)} of {len(sides[1])} parts that are judged are learned from as well, for example "
            f"{problem} on {device.name}. Hold whole parts out."
        )
