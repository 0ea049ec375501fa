"""Summaries that are written together are what each says, to the last byte."""

from __future__ import annotations

import copy
import random

from kernel_selector.service.summaries import FEW, encoded, summaries
from selector import Query
from selector.engine import Selector
from selector.reading import MANY
from selector.shipped import unpacked


def drawn(count: int, seed: int) -> list[Query]:
    draw = random.Random(seed)
    return [
        Query(hyperparameters={"hidden": draw.randint(8, 512), "batch": draw.randint(1, 64)}, device="h200")
        for _ in range(count)
    ]


def test_they_are_what_each_choice_says():
    selector = Selector(unpacked())
    asked = [drawn(3 * MANY, seed) for seed in (1, 2)]
    first, second = map(selector.choose_each, asked)
    again = selector.choose_each([*asked[0], *drawn(FEW - 1, 3), *asked[1][:FEW]])
    for choices in (first, second[: FEW - 1], again):
        written = summaries(choices)
        assert sum(choice.shown is not None for choice in choices) > len(choices) // 2
        assert written == [encoded(copy.copy(choice).summary()) for choice in choices]
    assert copy.copy(first[0]).shown is None
