"""Copies of a database in use, and their return into its place."""

from __future__ import annotations

import stat
import threading

import pytest

from kernel_selector.db import Database, DatabaseError, DatabaseReadOnly, integrity, records
from kernel_selector.db.engine.backup import back_up, restore


@pytest.fixture
def path(tmp_path, make_record):
    path = tmp_path / "measurements.sqlite"
    with Database.open(path, create=True) as database, database.write() as connection:
        records.add(connection, [make_record(number) for number in range(3)])
    return path


def count(path):
    with Database.open(path) as database, database.read() as connection:
        assert list(integrity.faults(connection)) == []
        return records.total(connection)


def test_a_copy_has_all_that_was_acknowledged_while_others_write(path, tmp_path, make_record):
    copy, acknowledged, stop = tmp_path / "copy.sqlite", [3], threading.Event()

    def write():
        with Database.open(path) as database:
            while not stop.is_set():
                with database.write() as connection:
                    records.add(connection, [make_record(acknowledged[0])])
                acknowledged[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        before = acknowledged[0]
        back_up(path, copy)
        after = acknowledged[0]
    finally:
        stop.set()
        writer.join()
    assert before <= count(copy) <= after + 1
    assert count(path) == acknowledged[0]
    assert stat.S_IMODE(copy.stat().st_mode) == stat.S_IMODE(path.stat().st_mode) == 0o600


def test_open_connections_go_on_with_what_was_restored_and_nothing_is_lost(path, tmp_path, make_record):
    copy = tmp_path / "copy.sqlite"
    back_up(path, copy)
    with Database.open(path) as database:
        with database.write() as connection:
            records.add(connection, [make_record(9)])
        before = restore(copy, path)
        with database.read() as connection:
            assert records.total(connection) == 3
        with database.write() as connection:
            records.add(connection, [make_record(10)])
    assert (count(path), count(before)) == (4, 4)


@pytest.mark.parametrize("damage", [b"no database at all", None], ids=["overwritten", "cut off"])
def test_a_damaged_file_is_kept_beside_the_restored_one(path, tmp_path, damage):
    copy = tmp_path / "copy.sqlite"
    back_up(path, copy)
    damaged = path.read_bytes()[:5000] if damage is None else damage
    path.write_bytes(damaged)
    before = restore(copy, path)
    assert before.read_bytes() == damaged
    assert count(path) == 3


def test_what_cannot_be_copied_changes_nothing(path, tmp_path):
    content = path.read_bytes()
    with pytest.raises(DatabaseReadOnly, match="exists already"):
        back_up(path, path)
    wrong = tmp_path / "wrong.sqlite"
    wrong.write_text("no database")
    with pytest.raises(DatabaseError, match="is not an SQLite database"):
        restore(wrong, path)
    with pytest.raises(DatabaseError, match="pg_dump copies it"):
        back_up("postgresql://nobody@localhost/none", tmp_path / "copy.sqlite")
    assert path.read_bytes() == content
