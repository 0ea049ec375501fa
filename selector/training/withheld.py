"""The chooser's answers from what is left of a database when a part of it is withheld.

This is `Selector.choose` itself: the measurements that are left, failures and verdicts of the gate among
them, and a cost model that has learned from these alone, are the body of evidence that it answers from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np

from kernel_selector.db import StoredModel
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Record

from ..errors import LeakedProblems
from ..selection.evidence import Evidence
from ..selection.knowledge import Knowledge
from ..selection.neighbours import timed_alike
from ..selection.query import Query
from ..selection.selector import Answer, Answers
from ..selection.shipped.rejections import rejected
from ..selection.snapshot import Body
from .dataset import Dataset
from .fit import Flags
from .robustness import contests
from .verdicts import Contest, Verdict, verdict

Withheld = Callable[[Record], object]  # the part that a record belongs to, which is withheld as a whole


def of_problem(record: Record) -> object:
    """The problem of a record, the same for those that take the same time."""
    return timed_alike(record.problem).key


def of_device(record: Record) -> object:
    """The kind of device of a record."""
    return record.device.key


def of_host(record: Record) -> object:
    """The device of a record, told apart by its host."""
    return record.device.fingerprint


class Replayed:
    """Questions about the contests of a dataset, each to what is left when some of them are withheld."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._devices = {device.fingerprint: device for device in dataset.devices}

    @cached_property
    def _outcomes(self) -> dict[tuple[str, str], dict[str, str]]:
        """How implementations ended last, by problem and device, in words."""
        found: dict[tuple[str, str], dict[str, str]] = {}
        for record in sorted(self._dataset.measured, key=lambda one: one.measured_at):
            key = record.problem.key, record.device.fingerprint
            good = "measured under other circumstances" if record.status == "ok" else record.status.value
            found.setdefault(key, {})[record.implementation] = good
        return found

    def contests(self, test: Flags) -> list[tuple[list[int], Contest]]:
        """The contests that have a choice to make, each with its rows."""
        data = self._dataset
        found = []
        for rows in contests(data, test):
            if len(rows) < 2:
                continue
            record = data.records[rows[0]]
            names = [data.records[row].implementation for row in rows]
            contest = Contest(
                record.problem,
                self._devices.get(record.device.fingerprint, record.device),
                dict(zip(names, data.time_ms[rows].tolist(), strict=True)),
                {data.records[row].implementation: _samples(data.records[row]) for row in rows},
                self._outcomes.get((record.problem.key, record.device.fingerprint), {}),
            )
            found.append((rows, contest))
        return found

    def answers(
        self, test: Flags, model: StoredModel, queries: Iterable[Query], part: Withheld = of_problem
    ) -> list[Answer]:
        """The answers to questions about what is withheld. Raises LeakedProblems where it is not."""
        answers = Answers(self._left(test, model, part), lambda _: None)
        return answers.each(list(queries))

    def verdicts(self, test: Flags, model: StoredModel, part: Withheld = of_problem) -> list[Verdict]:
        """The verdict on each contest of the test rows, of which neither evidence nor model has seen any.

        Raises LeakedProblems where some were to be learned from.
        """
        asked = [contest for _, contest in self.contests(test)]
        found = self.answers(test, model, [one.query for one in asked], part)
        return [verdict(*both) for both in zip(asked, found, strict=True)]

    def _left(self, test: Flags, model: StoredModel, part: Withheld) -> Knowledge:
        data = self._dataset
        withheld = {part(data.records[row]) for row in np.flatnonzero(test).tolist()}
        require_apart(data.records, test, part)
        left = [record for record in data.measured if part(record) not in withheld]
        there = {record.device.fingerprint for record in left}
        devices = tuple(device for device in data.devices if device.fingerprint in there)
        name = data.operator.name
        versions = {each: one.version for each, one in registry.implementations(name).items()}
        evidence = {}
        for key in {device.key for device in devices}:
            device = next(one for one in devices if one.key == key)
            verdicts = [one for one in rejected(name, device) if part(one) not in withheld]
            mine = [record for record in left if record.device.key == key]
            evidence[name, key] = Evidence(mine, versions, verdicts)
        return Knowledge(Body.of(evidence, {name: model}, devices), shipped=False)


def require_apart(records: Sequence[Record], test: Flags, part: Withheld) -> None:
    """Raise LeakedProblems where a part is on both sides: among what is judged, and what is learned from."""
    sides: tuple[dict[object, Record], dict[object, Record]] = {}, {}
    for record, judged in zip(records, test.tolist(), strict=True):
        sides[judged].setdefault(part(record), record)
    leaked = sides[0].keys() & sides[1].keys()
    if leaked:
        some = sides[1][min(leaked, key=str)]
        raise LeakedProblems(
            f"{len(leaked)} of {len(sides[1])} parts that are judged are learned from as well, for example "
            f"{some.problem} on {some.device.name}. Hold whole parts out."
        )


def _samples(record: Record) -> int:
    return record.total.samples if record.total else 0
