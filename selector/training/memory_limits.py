"""Choices under random memory limits: how many need more than they may, and what they lose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kernel_selector.db import StoredModel

from ..errors import NothingFits
from ..selection.choice import Choice
from .dataset import Dataset
from .fit import Flags
from .withheld import Replayed

LEAST_SPAN = 1.01  # of what the candidates of a contest need, for a limit between them to decide anything
LIMITS = 8  # random memory limits for each contest


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


class _Limited(NamedTuple):
    """A contest's rows by implementation, under a limit of bytes."""

    rows: dict[str, int]
    limit: int


def under_limits(
    dataset: Dataset, replayed: Replayed, parts: Iterable[tuple[Flags, StoredModel]]
) -> UnderLimits | None:
    """Choices under limits drawn, on a logarithmic scale, from what the contest's candidates need.

    Of each part all rows are withheld when the chooser is asked, and a choice that nothing was measured of
    is not counted. None where no limit decides anything.
    """
    draw, needs = np.random.default_rng(0), dataset.memory_bytes
    asked = judged = choices = exceeded = 0
    slowdowns: list[float] = []
    for test, model in parts:
        limited, queries = [], []
        for rows, contest in replayed.contests(test):
            least, most = needs[rows].min(), needs[rows].max()
            if most < least * LEAST_SPAN:
                continue
            of_name = {str(dataset.implementation[row]): row for row in rows}
            for limit in least * (most / least) ** draw.random(LIMITS):
                limited.append(_Limited(of_name, int(limit)))
                queries.append(replace(contest.query, memory=int(limit)))
        asked += len(limited)
        for one, answer in zip(limited, replayed.answers(test, model, queries), strict=True):
            if isinstance(answer, NothingFits):
                continue
            choices += 1
            row = one.rows.get(answer.implementation) if isinstance(answer, Choice) else None
            if row is None:
                continue
            judged += 1
            if needs[row] > one.limit:
                exceeded += 1
            else:
                times = [dataset.time_ms[each] for each in one.rows.values() if needs[each] <= one.limit]
                slowdowns.append(float(dataset.time_ms[row] / min(times)))
    if not asked:
        return None
    return UnderLimits(
        choices=judged,
        exceeded=exceeded / max(judged, 1),
        refused=1 - choices / asked,
        gmean=float(np.exp(np.log(slowdowns or [1.0]).mean())),
    )
