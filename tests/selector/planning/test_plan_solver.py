"""The integer program: the best counts there are, within the limit, also with blocks that run twice."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from selector.errors import InvalidRequest
from selector.planning.batch import best_batch, grid
from selector.planning.integer_program import Budget, Solution, shortest_step, solve
from selector.planning.options import Option, undominated
from selector.workloads.model import Part, parse_batch, problem_of

MIB = 2**20
BUDGET = Budget(limit=0, resident=0, kept=0, block=0, blocks=0, first_gradients=0, gradients=0)
PROBLEM = problem_of("gelu", "float32", {"elements": 1})


def part(name: str, count: int, per_block: int = 0) -> Part:
    return Part(name=name, problem=PROBLEM, count=count, output_bytes=0, per_block=per_block)


def option(name: str, ms: float, held: int, *, host_ms: float = 0.0, transient: int = 0) -> Option:
    return Option(
        implementation=name,
        default=name == "torchs",
        recomputed=False,
        device_ms=ms,
        host_ms=host_ms,
        held_bytes=held * MIB,
        transient_bytes=transient * MIB,
        source="exact",
        remark="",
    )


def counts(solution: Solution | None) -> dict[tuple[int, int], int]:
    assert solution is not None
    return dict(solution.counts)


def test_memory_that_is_left_goes_to_the_faster_implementation() -> None:
    choices = [[option("torchs", 1.0, 10), option("small", 3.0, 1)]]
    found = solve([part("layer", 10)], choices, replace(BUDGET, limit=55 * MIB))
    assert counts(found) == {(0, 0): 5, (0, 1): 5}
    assert found is not None
    assert found.peak_bytes == 55 * MIB
    assert found.step_ms == 20.0


def test_no_counts_are_better_than_the_solvers() -> None:
    draw = random.Random(0)
    for _ in range(5):
        parts = [part("a", 4), part("b", 3)]
        choices = [
            [
                option(str(index), draw.uniform(1, 5), draw.randint(1, 9), transient=draw.randint(0, 5))
                for index in range(3)
            ]
            for _ in parts
        ]
        limit = 40 * MIB
        best = _by_trying(parts, choices, limit)
        found = solve(parts, choices, replace(BUDGET, limit=limit))
        if best is None:
            assert found is None
        else:
            assert found is not None
            assert found.step_ms == pytest.approx(best, rel=1e-3)
            assert found.peak_bytes <= limit


def test_a_step_is_shortest_where_all_layers_of_a_part_get_one_option() -> None:
    draw = random.Random(1)
    for host in (True, False):
        for _ in range(10):
            parts = [part(str(index), draw.randint(1, 30)) for index in range(3)]
            choices = [
                [option(str(one), draw.uniform(1, 5), 7, host_ms=draw.uniform(1, 5)) for one in range(4)]
                for _ in parts
            ]

            best = min(_step_ms(parts, taken, host) for taken in itertools.product(*choices))
            found = shortest_step(parts, choices, host=host)
            assert _step_ms(parts, found, host) == pytest.approx(best, rel=2e-3)
    assert shortest_step([], [], host=True) == []


def _step_ms(parts: Sequence[Part], taken: Sequence[Option], host: bool) -> float:
    pairs = list(zip(parts, taken, strict=True))
    device_ms = sum(one.device_ms * part.count for part, one in pairs)
    return max(device_ms, sum(one.host_ms * part.count for part, one in pairs) if host else 0.0)


def _by_trying(parts: list[Part], choices: list[list[Option]], limit: int) -> float | None:
    """The least time of all assignments of options to layers that fit."""
    layers = [some for one, some in zip(parts, choices, strict=True) for _ in range(one.count)]
    every = (
        sum(one.device_ms for one in taken)
        for taken in itertools.product(*layers)
        if sum(one.held_bytes for one in taken) + max(one.transient_bytes for one in taken) <= limit
    )
    return min(every, default=None)


def test_what_backward_takes_for_the_largest_layer_is_left_free() -> None:
    choices = [[option("torchs", 1.0, 1, transient=8), option("small", 2.0, 1)]]
    assert counts(solve([part("layer", 2)], choices, replace(BUDGET, limit=9 * MIB))) == {(0, 1): 2}
    assert counts(solve([part("layer", 2)], choices, replace(BUDGET, limit=10 * MIB))) == {(0, 0): 2}


def test_gradients_count_where_backward_ends() -> None:
    choices = [[option("torchs", 1.0, 1)]]
    budget = replace(BUDGET, limit=10 * MIB, resident=4 * MIB, gradients=4 * MIB)
    found = solve([part("layer", 2)], choices, budget)
    assert found is not None
    assert (found.peak_bytes, found.peaks_at_end) == (8 * MIB, True)
    assert solve([part("layer", 2)], choices, replace(budget, gradients=7 * MIB)) is None


def test_blocks_run_twice_where_nothing_else_fits() -> None:
    kept = option("torchs", 3.0, 10)
    choices = [[kept, replace(kept, recomputed=True, device_ms=4.0)]]
    budget = replace(BUDGET, limit=45 * MIB, block=MIB, blocks=8)
    found = solve([part("layer", 8, per_block=1)], choices, budget)
    # kept 3 and recomputed 5: 30 + 5 of their inputs + 10 of the one that is run again
    assert counts(found) == {(0, 0): 3, (0, 1): 5}
    assert found is not None
    assert (found.recomputed_blocks, found.peak_bytes) == (5, 45 * MIB)
    assert solve([part("layer", 8, per_block=1)], choices, budget, recompute=False) is None


def test_the_slower_of_device_and_host_is_made_fast() -> None:
    choices = [[option("torchs", 1.0, 1, host_ms=5.0), option("one launch", 2.0, 1, host_ms=1.0)]]
    assert counts(solve([part("layer", 1)], choices, replace(BUDGET, limit=MIB))) == {(0, 1): 1}
    as_graph = solve([part("layer", 1)], choices, replace(BUDGET, limit=MIB), host=False)
    assert counts(as_graph) == {(0, 0): 1}


def test_graphs_keep_their_memory_to_themselves() -> None:
    choices = [[option("torchs", 1.0, 10, transient=4), option("small", 3.0, 1, transient=1)]]
    budget = replace(BUDGET, limit=30 * MIB, loss=8 * MIB, gradients=6 * MIB)
    together = solve([part("layer", 2)], choices, budget)
    assert together is not None
    assert (counts(together), together.peak_bytes) == ({(0, 0): 2}, 28 * MIB)
    apart = solve([part("layer", 2)], choices, replace(budget, apart=True))
    # 10 and 1 kept, 4 of the larger one, and 8 for the loss
    assert apart is not None
    assert (counts(apart), apart.peak_bytes) == ({(0, 0): 1, (0, 1): 1}, 23 * MIB)


def test_the_smallest_solution_says_what_a_model_takes_at_least() -> None:
    choices = [[option("torchs", 1.0, 10), option("small", 3.0, 1)]]
    found = solve([part("layer", 10)], choices, BUDGET, smallest=True)
    assert found is not None
    assert found.peak_bytes == 10 * MIB
    assert solve([part("layer", 10)], choices, replace(BUDGET, limit=9 * MIB)) is None


def test_dominated_options_are_left_out() -> None:
    good, slow, small = option("good", 1.0, 5), option("slow", 2.0, 5), option("small", 3.0, 1)
    assert undominated([slow, small, good]) == [good, small]
    assert undominated([option("zebra", 1.0, 1), option("torchs", 1.0, 1)]) == [option("torchs", 1.0, 1)]


def test_a_hundred_layers_of_eight_implementations_are_quick() -> None:
    import time

    draw = random.Random(1)
    choices = [
        [option(str(index), draw.uniform(1, 5), draw.randint(1, 90)) for index in range(8)] for _ in range(5)
    ]
    parts = [part(str(index), 20) for index in range(5)]
    start = time.process_time()
    found = solve(parts, choices, replace(BUDGET, limit=2000 * MIB))
    assert found is not None
    assert sum(found.counts.values()) == 100
    assert time.process_time() - start < 1


def test_batches_are_scanned_until_they_no_longer_fit() -> None:
    asked: list[int] = []

    def offer(batch: int) -> int | None:
        asked.append(batch)
        return batch if batch <= 100 else None

    assert best_batch(offer, float) == 96
    assert len(asked) < 25
    assert best_batch(lambda _: None, float) is None


def test_a_batch_in_the_middle_may_be_the_best() -> None:
    assert best_batch(lambda batch: batch, lambda batch: -abs(batch - 40)) == 40


def test_the_grid_rises() -> None:
    sizes = list(grid())
    assert sizes[:7] == [1, 2, 3, 4, 6, 8, 12]
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("batch", [0, -1, 2.0, True, "16", None, 2**30])
def test_other_batches_are_refused(batch: object) -> None:
    with pytest.raises(InvalidRequest, match="expected"):
        parse_batch(batch)
