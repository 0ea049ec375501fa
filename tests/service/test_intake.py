"""Records that come in together share what is equal in them, and nothing that only looks equal."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kernel_selector.db import Database
from kernel_selector.service.ingest.intake import Intake, NotRecords, _records
from kernel_selector.service.openapi.example_record import LINE
from selector import Selector


def line(**changes: object) -> str:
    data = json.loads(LINE)
    data["problem"] |= changes
    return json.dumps(data)


def test_equal_problems_are_one_object() -> None:
    (_, _, first), (_, _, second), (_, _, other) = _records([line(), line(), line(hidden=7)])
    assert second.problem is first.problem
    assert second.device is first.device is other.device
    assert other.problem.hidden == 7


def test_true_is_not_taken_for_one(tmp_path) -> None:
    Database.open(tmp_path / "records.sqlite", create=True).close()
    selector = Selector(tmp_path / "records.sqlite")
    intake = Intake(selector)
    receipt = intake.take([line(bias=True), line(bias=1), line(bias=True)], "ann")
    assert (receipt.added, receipt.known) == (1, 1)
    assert [(fault.line, "no operator here makes" in fault.detail) for fault in receipt.quarantined] == [
        (2, True)
    ]
    intake.close()
    selector.close()


def test_reading_ends_after_a_thousand_lines_that_are_no_records() -> None:
    read: list[int] = []

    def lines() -> Iterator[str]:
        for number in range(100_000):
            read.append(number)
            yield "{}"

    with pytest.raises(NotRecords, match="1000 lines or more are no records; nothing was stored") as caught:
        _records(lines())
    assert len(read) == 1000
    assert [fault.line for fault in caught.value.faults] == list(range(1, 11))
