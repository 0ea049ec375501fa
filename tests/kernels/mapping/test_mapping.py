"""Properties of task mappings, exhaustively for small sizes and at random for larger ones."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from kernel_selector.kernels.mapping import MappingError, draw, listed, loops, parse, repeat, spatial

SMALL = [
    make(*shape, order=order)
    for make in (spatial, repeat)
    for shape in product((1, 2, 3), repeat=2)
    for order in ((0, 1), (1, 0))
]
MOST = 2048  # tasks of a mapping at random: four parts of three axes may have 16 million


def parts(axes):
    sizes = some.lists(some.integers(1, 4), min_size=axes, max_size=axes)
    orders = some.permutations(range(axes))
    return some.builds(
        lambda make, shape, order: make(*shape, order=order),
        some.sampled_from([spatial, repeat]),
        sizes,
        orders,
    )


def composed(axes=2):
    def multiply(found):
        whole = found[0]
        for part in found[1:]:
            if prod(whole.task_shape) * prod(part.task_shape) <= MOST:
                whole = whole * part
        return whole

    return some.lists(parts(axes), min_size=1, max_size=4).map(multiply)


def tasks(mapping):
    return [task for worker in range(mapping.workers) for task in mapping(worker)]


def everything(shape):
    return sorted(product(*map(range, shape)))


@pytest.mark.parametrize("outer", SMALL, ids=str)
def test_each_task_belongs_to_one_worker_once(outer):
    for inner in SMALL:
        whole = outer * inner
        assert sorted(tasks(whole)) == everything(whole.task_shape)
        assert whole.workers == outer.workers * inner.workers
        assert whole.tasks_per_worker == outer.tasks_per_worker * inner.tasks_per_worker
        assert {len(whole(worker)) for worker in range(whole.workers)} == {whole.tasks_per_worker}


@pytest.mark.parametrize("outer", SMALL, ids=str)
def test_composition_is_the_papers(outer):
    for inner in SMALL:
        d = inner.task_shape
        whole = outer * inner
        for worker in range(whole.workers):
            first, second = divmod(worker, inner.workers)
            expected = [(a * d[0] + c, b * d[1] + e) for a, b in outer(first) for c, e in inner(second)]
            assert whole(worker) == expected


@settings(max_examples=60, deadline=None)
@given(composed(), composed(), composed())
def test_composition_is_associative(f, g, h):
    assert (f * g) * h == f * (g * h)
    assert str((f * g) * h) == str(f * (g * h))


def test_composition_does_not_commute():
    assert (repeat(2) * spatial(2))(0) == [(0,), (2,)]
    assert (spatial(2) * repeat(2))(0) == [(0,), (1,)]


@settings(max_examples=60, deadline=None)
@given(some.integers(1, 3).flatmap(composed))
def test_any_mapping_covers_its_grid_and_reads_back(mapping):
    assert sorted(tasks(mapping)) == everything(mapping.task_shape)
    assert parse(str(mapping)) == mapping
    assert mapping.require(tasks=mapping.task_shape, workers=mapping.workers) is mapping


@settings(max_examples=80, deadline=None)
@given(some.integers(1, 3).flatmap(composed))
def test_generated_loops_compute_what_the_mapping_says(mapping):
    code = loops(mapping, "w")
    lines = ["def run(w):"]
    for depth, (variable, extent) in enumerate(code.loops, 1):
        lines.append("    " * depth + f"for {variable} in range({extent}):")
    lines.append("    " * (len(code.loops) + 1) + f"yield ({', '.join(code.coordinates)},)")
    names = {}
    exec("\n".join(lines), names)
    for worker in range(mapping.workers):
        assert list(names["run"](worker)) == mapping(worker)


def test_named_sizes_are_bound_at_run_time():
    grid = spatial("groups", 1) * spatial(2, "tiles_n", order=(1, 0))
    assert grid.names == ("groups", "tiles_n")
    assert parse(str(grid)) == grid
    code = loops(grid, "program")
    bound = grid.bind(groups=3, tiles_n=5)
    for worker in range(bound.workers):
        values = {"program": worker, "groups": 3, "tiles_n": 5}
        assert [tuple(eval(axis, values) for axis in code.coordinates)] == bound(worker)
    with pytest.raises(MappingError, match="known at run time"):
        grid.task_shape  # noqa: B018
    with pytest.raises(MappingError, match="no size named"):
        grid.bind(rows=3)


def test_loops_are_as_short_as_can_be():
    mapping = spatial(4, 1) * repeat(1, 2) * spatial(8, 4) * repeat(1, 2)
    code = loops(mapping, "t", divide="/")
    assert code.loops == (("step0", "2"), ("step1", "2"))
    assert code.coordinates == ("(t / 32) * 8 + (t / 4) % 8", "step0 * 8 + (t % 4) * 2 + step1")


def test_listed_mappings():
    snake = listed((2, 3), [[(0, 0), (0, 1), (0, 2)], [(1, 2), (1, 1), (1, 0)]])
    whole = snake * repeat(2, 1)
    assert whole.task_shape == (4, 3)
    assert sorted(tasks(whole)) == everything((4, 3))
    assert parse(str(whole)) == whole
    with pytest.raises(MappingError, match="no loops"):
        loops(whole, "w")


def test_drawing():
    assert draw(spatial(2, 1) * repeat(1, 2)).splitlines()[1:] == ["0.0 0.1", "1.0 1.1"]
    assert draw(spatial(3)).splitlines() == ["spatial(3): 3 workers, 1 tasks each", "0 1 2"]
    with pytest.raises(MappingError, match="two axes"):
        draw(spatial(2, 2, 2))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: spatial(), "no axes"),
        (lambda: spatial(4, 0), "whole number from 1"),
        (lambda: repeat(True, 2), "whole number from 1"),
        (lambda: repeat(2.0, 2), "whole number from 1"),
        (lambda: spatial("two words"), "whole number from 1"),
        (lambda: spatial(4, 2, order=(0, 0)), "each axis once"),
        (lambda: spatial(4) * repeat(4, 2), r"\[1, 2\] axes"),
        (lambda: listed((2, 2), [[(0, 0), (0, 1)], [(1, 0), (0, 1)]]), "4 tasks, 3 of them different"),
        (lambda: listed((2, 2), [[(0, 0)], [(0, 1)]]), "do not cover the 4 tasks"),
        (lambda: listed((2,), [[(0,), (2,)]]), "outside of the grid"),
        (lambda: listed((3,), [[(0,), (1,)], [(2,)]]), "as many each"),
        (
            lambda: spatial(4, 8).require(tasks=(8, 8)),
            r"covers \[4, 8\] tasks, expected exactly \[8, 8\]: 32 of 64",
        ),
        (lambda: spatial(4, 8).require(workers=128), "takes 32 workers, and there are 128"),
        (lambda: repeat(32, 8).require(most_tasks=255), "256 tasks, it has room for 255"),
        (lambda: parse("spatial(4"), "is no task mapping"),
        (lambda: parse("__import__('os')"), "is no task mapping"),
        (lambda: parse("spatial(open('x'))"), "is no task mapping"),
    ],
)
def test_what_is_no_mapping_is_refused_with_the_numbers(make, reason):
    with pytest.raises(MappingError, match=reason):
        make()


def test_workers_are_numbered_from_zero():
    with pytest.raises(IndexError, match="expected 0 to 3"):
        spatial(2, 2)(4)
