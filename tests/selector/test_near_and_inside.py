"""Quick looks at what the model has seen, and at what is near, never say other than the whole ones."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.devices import known_device
from selector.domain import EDGE, SIZE_SLACK, Domain
from selector.neighbours import MAX_DISTANCE, Neighbours, distance, structure
from selector.problem_sets import random_problems
from selector.reading import least_work
from selector.table import Table

LSTM, H200 = registry.operator("lstm"), known_device("h200")
WORDS = {"bidirectional": [False], "bias": [True], "dtype": ["float16", "float32"], "mode": ["training"]}


def domain(**ranges: tuple[float, float]) -> Domain:
    wide = dict.fromkeys(("hidden", "input", "batch", "seq", "layers"), (0.0, 30.0))
    edges = {**wide, "operations": (0.0, 50.0), **ranges}
    return Domain({H200.key: {"words": WORDS, "log2": {name: list(each) for name, each in edges.items()}}})


@pytest.mark.parametrize("ranges", [{}, {"hidden": (5.0, 7.3)}, {"operations": (20.0, 28.0)}])
def test_what_is_well_inside_is_not_outside(ranges):
    seen, found = domain(**ranges), {True: 0, False: 0}
    problems = random_problems("lstm", "cuda", count=300, seed=3)
    operations = [least_work(problem).flops for problem in problems]
    each = seen.covers_each(Table(problems), H200, operations)
    for problem, is_covered in zip(problems, each, strict=True):
        assert is_covered == (seen.outside(problem, H200) is None)  # none of these is at an edge
        found[is_covered] += 1
    assert min(found.values()) > 20


def test_at_an_edge_the_logarithm_decides():
    high = np.log2(96) - SIZE_SLACK  # so that 96 is the last one inside
    seen = domain(hidden=(5.0, float(high)))
    problem = LSTM.problem(hidden=96, batch=8, mode="training")
    assert seen.covers_each(Table([problem]), H200, [least_work(problem).flops]) == [False]
    assert seen.outside(problem, H200) is None
    assert EDGE < 1e-6


def test_the_cells_lose_no_neighbour():
    drawn = random_problems("lstm", "cuda", count=900, seed=4)
    known, near = Neighbours(drawn[:600]), 0
    for problem in drawn[600:]:
        members = [one for one in drawn[:600] if structure(one) == structure(problem)]
        closest = min((distance(problem, one) for one in members), default=np.inf)
        found = known.nearest(problem)
        assert (found is not None) == (closest <= MAX_DISTANCE)
        near += found is not None
    assert near > 3
