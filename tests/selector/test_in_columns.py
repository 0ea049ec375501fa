"""What is asked in columns is what each problem is asked alone, to the last digit."""

from __future__ import annotations

import math
import operator
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_selector.kernels import registry
from kernel_selector.kernels.asking import counts_of
from kernel_selector.kernels.branches import PICK
from kernel_selector.kernels.by_paths import WORTH, Asked, ByPaths
from kernel_selector.kernels.contract import Integer, InvalidHyperparameter
from kernel_selector.kernels.devices import known_device
from selector.columns import EXACT, FUNCTIONS, Column, Inexact, column
from selector.considering import considered, considered_each
from selector.counting import Counting
from selector.in_columns import FEW, Together, told_each
from selector.predictor import Places
from selector.problem_sets import random_problems
from selector.reading import Reading, rows_of
from selector.table import Table

H200 = known_device("h200")
LSTM = registry.operator("lstm")
STRUCTURE = {"layers", "heads", "kv_heads", "projection"}  # that mostly stay as they are
ARITHMETIC = ["add", "sub", "mul", "truediv", "floordiv", "mod"]
floats = st.one_of(st.just(0.0), st.floats(1e-9, 1e9), st.floats(-1e9, -1e-9))
numbers = st.one_of(
    st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=9),
    st.lists(floats, min_size=1, max_size=9),
)


def exactly(values: Column | Any, count: int) -> list[tuple[type, Any]]:
    """The numbers of a column, with their types; of one number so many of them."""
    if not isinstance(values, Column):
        return [(type(values), values)] * count
    if values.values.dtype == bool:
        return [(bool, value) for value in values.values.tolist()]
    kind = float if values.most is None else int
    assert values.most is None or (abs(values.values) <= values.most).all()
    return [(kind, kind(value)) for value in values.values.tolist()]


@pytest.mark.parametrize("name", [*ARITHMETIC, "lt", "le", "gt", "ge", "eq", "ne"])
@given(one=numbers, other=st.one_of(st.integers(-1000, 1000), floats))
def test_columns_do_what_numbers_do(name: str, one: list[Any], other: Any) -> None:
    function = getattr(operator, name)
    for pairs, sides in (
        ([(value, other) for value in one], (column(one), other)),
        ([(other, value) for value in one], (other, column(one))),
        ([*zip(one, one[::-1], strict=True)], (column(one), column(one[::-1]))),
    ):
        try:
            expected = [function(*pair) for pair in pairs]
        except ZeroDivisionError:
            with pytest.raises(Inexact):
                function(*sides)
        else:
            assert exactly(function(*sides), len(one)) == [(type(value), value) for value in expected]


@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=9))
def test_whole_numbers_have_bits(values: list[int]) -> None:
    bits = column(values).bit_length()
    assert exactly(bits, 0) == [(int, value.bit_length()) for value in values]
    assert exactly(1 << bits, 0) == [(int, 1 << value.bit_length()) for value in values]
    assert exactly(column(values) << 3, 0) == [(int, value << 3) for value in values]
    assert exactly(column(values) >> bits, 0) == [(int, value >> value.bit_length()) for value in values]


@pytest.mark.parametrize("name", ["int", "float", "ceil", "floor", "trunc", "log2", "sqrt"])
@given(st.lists(st.floats(0.01, 1e9), min_size=1, max_size=9))
def test_functions_do_what_they_do_to_each(name: str, values: list[float]) -> None:
    plain = {"int": int, "float": float}.get(name) or getattr(math, name)
    found = FUNCTIONS[name](column(values))
    assert exactly(found, 0) == [(type(plain(value)), plain(value)) for value in values]
    assert FUNCTIONS[name](values[0]) == plain(values[0])


def test_the_larger_of_two_is_picked_one_by_one() -> None:
    one, other = column([1, 5, 3]), column([2, 4, 3])
    assert exactly(FUNCTIONS[PICK](one > other, one, other), 3) == [(int, 2), (int, 5), (int, 3)]
    assert exactly(FUNCTIONS[PICK](one > 2, one, 2), 3) == [(int, 2), (int, 5), (int, 3)]
    assert FUNCTIONS[PICK](True, 1, 2) == 1


@pytest.mark.parametrize(
    "refused",
    [
        lambda: column([1, 2.0]),
        lambda: column([1, True]),
        lambda: column(["a"]),
        lambda: column([EXACT + 1]),
        lambda: column([2**30, 1]) * 2**30,
        lambda: column([1, 2]) < EXACT + 1,
        lambda: column([1, 2]) / column([1, 0]),
        lambda: 1 << column([1, 60]),
        lambda: 1 << column([1, -1]),
        lambda: bool(column([1, 2])),
    ],
)
def test_what_would_be_something_else_is_refused(refused: Any) -> None:
    with pytest.raises(Inexact):
        refused()


def alike(name: str, seed: int) -> list[Reading]:
    """Problems some of which have nothing but their sizes of their own."""
    known, draw = registry.operator(name), random.Random(seed)
    drawn = random_problems(name, "cuda", count=60, seed=seed)
    sizes = [
        spec for spec in known.hyperparameters if isinstance(spec, Integer) and spec.name not in STRUCTURE
    ]
    for problem in drawn[:4]:
        for _ in range(2 * FEW):
            values = dict(problem.as_dict)
            for spec in sizes:
                if spec.name in values:
                    size = int(values[spec.name] * draw.uniform(0.5, 2))
                    values[spec.name] = min(max(size, spec.minimum), spec.maximum)
            try:
                drawn.append(known.problem(values))
            except InvalidHyperparameter:
                continue
    return [Reading.of(problem) for problem in drawn]


@pytest.mark.parametrize("name", registry.operators())
def test_each_problem_is_told_as_alone(name: str) -> None:
    known = registry.implementations(name)
    for seed in range(3):  # the first problems leave paths
        readings = alike(name, seed)
        found = considered_each(Table(readings), H200)
        for reading, one in zip(readings, found, strict=True):
            alone = considered(reading, H200)
            assert (one.accepted, dict(one.refused)) == (alone.accepted, dict(alone.refused)), reading
        members = [place for place, one in enumerate(found) if one.accepted]
        places = Places.of([found[place].accepted for place in members], known)
        least, counted = Counting(Table(readings)).tables(members, places.of_each, places.which, known)
        for place, row in zip(members, least.tolist(), strict=True):
            assert tuple(row) == counts_of(registry.operator(name).work(readings[place]))
        items = list(known.values())
        for whose, which, row in zip(places.of_each, places.which, counted.tolist(), strict=True):
            reading, item = readings[members[whose]], items[which]
            assert tuple(row) == counts_of(item.work(reading)), (item.name, reading)


def told(function: Any, sizes: list[int]) -> list[Any]:
    """What a function says of LSTM layers of these sizes, after others have left paths; in their order."""
    names = tuple(spec.name for spec in LSTM.hyperparameters)
    paths = ByPaths(Asked("a test", function, names, lambda said: (said,)))
    for hidden in (range(8, 8 + WORTH), sizes):
        readings = [Reading.of(LSTM.problem(hidden=size, batch=3)) for size in hidden]
        rows = rows_of(readings)
        groups, others = told_each(
            paths, Together.of(LSTM.hyperparameters, rows), rows.__getitem__, Table(readings)
        )
        found: dict[int, Any] = {place: said for place, (said,) in others.items()}
        for group, (said,) in groups:
            numbers = [value for _, value in exactly(said, len(group.places))]
            found |= dict(zip(group.places.tolist(), numbers, strict=True))
    assert groups, "nothing was told in columns"
    return [found[place] for place in range(len(sizes))]


def test_problems_part_where_their_sizes_decide() -> None:
    def function(problem: Any) -> int:
        hidden: int = problem["hidden"]
        return hidden * 2 if hidden > 40 else hidden * 3

    sizes = [9 + place % (2 * FEW) for place in range(4 * FEW)]
    assert told(function, sizes) == [size * 2 if size > 40 else size * 3 for size in sizes]


def test_who_leaves_the_paths_is_asked_alone() -> None:
    def function(problem: Any) -> int:
        hidden: int = problem["hidden"]
        return hidden * 2 if hidden < 500 else hidden

    sizes = [8 + place for place in range(FEW)] + [600] * FEW
    assert told(function, sizes) == [size * 2 if size < 500 else size for size in sizes]


def test_what_columns_refuse_of_some_is_asked_of_them_alone() -> None:
    sizes = [8 + place for place in range(FEW)]
    with pytest.raises(AssertionError, match="in columns"):
        told(lambda problem: problem["hidden"] * 2**52, sizes)


def test_a_group_has_what_is_alike_once() -> None:
    rows = rows_of([Reading.of(LSTM.problem(hidden=8 + place, batch=3)) for place in range(FEW)])
    together = Together.of(LSTM.hyperparameters, [*rows, LSTM.problem(hidden=1, batch=1, bias=False).row])
    (group,) = together.groups
    assert together.others.tolist() == [FEW]
    assert group.values["batch"] == 3
    assert isinstance(group.values["hidden"], Column)
    half = together.part(np.arange(FEW + 1) % 2 == 0)
    assert half.groups[0].places.tolist() == list(range(0, FEW, 2))
    assert half.groups[0].values["hidden"].values.tolist() == list(range(8, 8 + FEW, 2))
    assert half.others.tolist() == [FEW]
