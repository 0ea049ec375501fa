"""Measurements of others in the database: kept once each, side by side where they differ, never changed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from kernel_selector.db import Database, DatabaseError, imported, snapshot
from kernel_selector.db.imported import ImportedRow
from kernel_selector.kernels.contract import CorruptRecord

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def row(number: int = 0, **given) -> ImportedRow:
    values = {"m": 2**number, "alpha": 0.5, "layout": "nn", "packed": True}
    return ImportedRow(
        **{
            "values": values,
            "implementation": "tiled",
            "status": "ok",
            "time_ms": 1.5,
            "memory_bytes": 64,
            **given,
        }
    )


def add(database: Database, *rows: ImportedRow, operator: str = "gemm", device: str = "H200") -> int:
    with database.write() as connection:
        return imported.add(
            connection, operator=operator, device=device, rows=rows, source="a.jsonl", imported_at=NOW
        )


def stored(database: Database) -> list[tuple]:
    with database.read() as connection:
        return [figures for page in imported.figures(connection, operator="gemm") for figures in page]


def snapshot_of(database: Database) -> str:
    with database.read() as connection:
        return snapshot(connection)


def test_equal_rows_are_stored_once_and_others_side_by_side(database):
    assert add(database, row(), row(), row(1)) == 2
    assert add(database, row(1), row(), row(2)) == 1
    assert add(database, row(time_ms=2.5)) == 1
    assert add(database, row(memory_bytes=None), row(status="crashed", time_ms=None, reason="it did")) == 2
    assert [item[5] for item in stored(database)] == [1.5, 1.5, 1.5, 2.5, 1.5, None]
    with database.read() as connection:
        assert imported.total(connection) == 6
        found = dict(imported.problems(connection, operator="gemm"))
    assert [values["m"] for values in found.values()] == [1, 2, 4]
    assert found[1] == {"m": 1, "alpha": 0.5, "layout": "nn", "packed": True}


def test_the_device_and_the_operator_are_part_of_what_a_row_is(database):
    assert add(database, row()) == 1
    assert add(database, row(), device="H100") == 1
    assert add(database, row(), operator="conv") == 1
    assert len(stored(database)) == 2


def test_the_snapshot_is_of_the_content_not_of_how_it_came(tmp_path):
    ids = []
    for name, parts in (("a", [[0, 1, 2]]), ("b", [[2], [1, 2], [0, 1]])):
        with Database.open(tmp_path / f"{name}.sqlite", create=True) as database:
            empty = snapshot_of(database)
            for part in parts:
                add(database, *map(row, part))
            ids.append(snapshot_of(database))
    assert ids[0] == ids[1] != empty


def test_a_batch_says_what_is_in_it(database):
    add(database, row(), row(3), row(1, status="timeout", time_ms=None, memory_bytes=None, reason="slow"))
    with database.read() as connection:
        (batch,) = imported.batches(connection)
    assert batch["summary"] == {
        "rows": 3,
        "good": 2,
        "memory": True,
        "implementations": {"tiled": 3},
        "hyperparameters": {
            "m": {"kind": "integer", "low": 1, "high": 8},
            "alpha": {"kind": "number", "low": 0.5, "high": 0.5},
            "layout": {"kind": "category", "words": ["nn"]},
            "packed": {"kind": "boolean"},
        },
    }


@pytest.mark.parametrize("table", ["imported_batch", "imported_problem", "imported_measurement"])
@pytest.mark.parametrize("change", ["DELETE FROM {}", "UPDATE {} SET id = 7"])
def test_nothing_is_changed_or_removed(database, table, change):
    add(database, row())
    with pytest.raises(DatabaseError, match="append-only"), database.write() as connection:
        connection.execute(text(change.format(table)))


@pytest.mark.parametrize(
    "given",
    [{"time_ms": None}, {"time_ms": -1.0}, {"status": "fine"}, {"memory_bytes": -1}, {"status": "crashed"}],
)
def test_the_database_itself_refuses_what_cannot_be(database, given):
    with pytest.raises(DatabaseError):
        add(database, row(**given))


def test_text_that_no_database_can_hold_is_refused(database):
    with pytest.raises(CorruptRecord):
        add(database, row(implementation="a\0b"))
