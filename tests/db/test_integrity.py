"""What changed in a database otherwise than by storing is found, row by row."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing

import pytest

from kernel_selector.db import Database, DatabaseError, integrity, records
from kernel_selector.kernels.contract import SelectorError

# statements that change what is read, and the beginning of the words for it
CHANGES = {
    "a time": ("UPDATE measurement SET forward_p50_ms = 1.25 WHERE id = 2", "measurement 2 is not what was"),
    "a reason": ("UPDATE measurement SET reason = 'x' WHERE id = 2", "measurement 2 is not what was"),
    "a sample": ("UPDATE measurement SET forward_raw_ms = '[1.1, 0.3, 2.5]' WHERE id = 2", "measurement 2"),
    "what follows": (
        "UPDATE measurement SET forward_backward_undisturbed_ms = 0.5 WHERE id = 2",
        "measurement 2 has an undisturbed time",
    ),
    "a device": ("UPDATE device SET launch_us = 9.5", "measurement 1 is not what was stored"),
    "a problem that is none": (
        'UPDATE problem SET "values" = 7 WHERE id = 2',
        "measurement 2 cannot be read",
    ),
    "a version": ("UPDATE implementation SET version = 'other'", "measurement 1 is not what was stored"),
    "a row that is gone": ("DELETE FROM measurement WHERE id = 2", "the counts of "),
    "a count": ("UPDATE tally SET records = 7", "the counts of "),
}


def found_in(database):
    with database.read() as connection:
        return list(integrity.faults(connection))


@pytest.fixture
def filled(database, make_record):
    with database.write() as connection:
        records.add(connection, [make_record(number) for number in range(3)])
    return database


def test_what_was_stored_has_no_fault(filled):
    assert found_in(filled) == []


@pytest.mark.parametrize(("statement", "words"), CHANGES.values(), ids=CHANGES)
def test_a_change_is_found(tmp_path, make_record, statement, words):
    path = tmp_path / "measurements.sqlite"
    with Database.open(path, create=True) as database:
        with database.write() as connection:
            records.add(connection, [make_record(number) for number in range(3)])
        with closing(sqlite3.connect(path)) as raw:
            for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                raw.execute(f"DROP TRIGGER {name}")
            raw.execute(statement)
            raw.commit()
        faults = found_in(database)
    assert faults
    assert faults[0].startswith(words), faults


def test_a_flipped_bit_of_the_file_is_found_or_changes_nothing_that_is_read(tmp_path, make_record):
    path, copy = tmp_path / "measurements.sqlite", tmp_path / "flipped.sqlite"
    with Database.open(path, create=True) as database, database.write() as connection:
        records.add(connection, [make_record(number) for number in range(20)])
    with Database.open(path) as database, database.read() as connection:
        before = list(records.find(connection))
    content, draw = path.read_bytes(), random.Random(3)
    for _ in range(60):
        place = draw.randrange(100, len(content))
        flipped = bytearray(content)
        flipped[place] ^= 1 << draw.randrange(8)
        copy.write_bytes(flipped)
        try:
            with Database.open(copy) as database:
                faults = found_in(database)
                with database.read() as connection:
                    assert faults or list(records.find(connection)) == before
        except (DatabaseError, SelectorError):
            continue
