"""A part of a table is the table of its problems."""

from __future__ import annotations

import random

import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.devices import known_device
from selector.considering import considered, considered_each
from selector.in_columns import FEW
from selector.reading import MANY, Reading
from selector.table import Table

LSTM = registry.operator("lstm")
H200 = known_device("h200")


@pytest.fixture
def table() -> Table:
    """Problems with and without a bias, in turns."""
    draw = random.Random(2)
    return Table(
        [
            LSTM.problem(hidden=draw.randint(8, 512), batch=draw.randint(1, 64), bias=place % 2 == 0)
            for place in range(6 * FEW)
        ]
    )


def test_values_are_there_by_row_and_by_column(table):
    assert table.operator is LSTM
    assert table.columns["bias"] == (True, False) * (3 * FEW)
    assert [table.columns["hidden"][place] for place in (0, 7)] == [table[place].hidden for place in (0, 7)]
    assert table.rows[3] == table[3].row
    assert [one.row for one in table[2:4]] == table.rows[2:4]
    assert all(isinstance(one, Reading) for one in table)
    assert table[5] is table[5]


@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_a_part_is_asked_as_its_problems_are_alone(table, step):
    considered_each(table, H200)  # which leaves paths
    places = list(range(0, len(table), step))
    part = table.part(places)
    assert (part is table) == (step == 1)
    assert part[1] is table[step]
    for found, place in zip(considered_each(part, H200), places, strict=True):
        alone = considered(table[place], H200)
        assert (found.accepted, dict(found.refused)) == (alone.accepted, dict(alone.refused))


def test_groups_of_a_part_are_those_that_are_worth_it(table):
    assert [len(group.places) for group in table.together.groups] == [3 * FEW, 3 * FEW]
    part = table.part([*range(0, 2 * FEW, 2), *range(1, 2 * MANY, 2)])
    (group,) = part.together.groups
    assert group.places.tolist() == list(range(FEW))
    assert group.values["hidden"].values.tolist() == [table[2 * place].hidden for place in range(FEW)]
    assert sorted(part.together.others.tolist()) == list(range(FEW, FEW + MANY))
