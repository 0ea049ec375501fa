"""The measurements that ship: what later files add to the first ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks import ship
from kernel_selector.kernels.contract import Record
from tests.selector import replay


@pytest.fixture
def measured() -> Record:
    """A measurement of the first files."""
    return replay.recorded()[0]


def test_later_records_of_another_version_are_added_beside_the_older_one(measured: Record) -> None:
    newer = replace(measured, implementation_version="newer")
    assert ship._added([measured], [newer]) == [newer]
    assert ship._added([measured, newer], [newer]) == []


def test_later_records_of_another_implementation_are_added(measured: Record) -> None:
    other = replace(measured, implementation="another")
    assert ship._added([measured], [measured, other]) == [other]


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "another"},
        {"device": replace(replay.HERE, name="another")},
        {"problem": replay.recorded()[-1].problem},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_later_records_of_what_the_first_files_lack_are_left_out(
    measured: Record, changes: dict[str, Any]
) -> None:
    newer = replace(measured, implementation_version="newer", **changes)
    assert ship._added([measured], [newer]) == []
