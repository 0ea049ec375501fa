"""The nearest measured problem, found by cells, is the one that a look at all of them finds."""

from __future__ import annotations

import numpy as np

from selector.selection.neighbours import MAX_DISTANCE, Neighbours, distance, structure
from selector.workloads.sampling import random_problems


def test_the_cells_lose_no_neighbour():
    drawn = random_problems("layer_norm", "cuda", count=900, seed=4)
    known, near = Neighbours(drawn[:600]), 0
    for problem in drawn[600:]:
        members = [one for one in drawn[:600] if structure(one) == structure(problem)]
        closest = min((distance(problem, one) for one in members), default=np.inf)
        found = known.nearest(problem)
        assert (found is not None) == (closest <= MAX_DISTANCE)
        near += found is not None
    assert near > 3
