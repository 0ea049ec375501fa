"""Copies of a database in use, and their return into its place."""

from __future__ import annotations

import itertools
import os
import sqlite3
import stat
import threading
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from kernel_selector.db import (
    Database,
    DatabaseCorrupt,
    DatabaseError,
    DatabaseLocked,
    DatabaseMissing,
    DatabaseReadOnly,
    audit,
    corrections,
    integrity,
    records,
    submissions,
    tokens,
)
from kernel_selector.db.engine.backup import back_up, restore
from tests.db.conftest import change


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


@contextmanager
def writing(path, make_record):
    """A list with the number of acknowledged records, of which another one is written at any time."""
    acknowledged, stop = [3], threading.Event()

    def write():
        with Database.open(path) as database:
            while not stop.is_set():
                with database.write() as connection:
                    records.add(connection, [make_record(acknowledged[0])])
                acknowledged[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield acknowledged
    finally:
        stop.set()
        writer.join()


def test_a_copy_has_all_that_was_acknowledged_while_others_write(path, tmp_path, make_record):
    copy = tmp_path / "copy.sqlite"
    with writing(path, make_record) as acknowledged:
        before = acknowledged[0]
        back_up(path, copy)
        after = acknowledged[0]
    assert before <= count(copy) <= after + 1
    assert count(path) == acknowledged[0]
    assert stat.S_IMODE(copy.stat().st_mode) == stat.S_IMODE(path.stat().st_mode) == 0o600


def test_open_connections_go_on_with_what_was_restored_and_nothing_is_lost(path, tmp_path, make_record):
    copy = tmp_path / "copy.sqlite"
    back_up(path, copy)
    with Database.open(path) as database:
        with database.write() as connection:
            records.add(connection, [make_record(9)])
        before = restore(copy, path, author="ops").before
        with database.read() as connection:
            assert records.total(connection) == 3
        with database.write() as connection:
            records.add(connection, [make_record(10)])
    assert (count(path), count(before)) == (4, 4)


def test_what_is_acknowledged_while_a_backup_is_restored_is_in_one_of_the_files(path, tmp_path, make_record):
    copy = tmp_path / "copy.sqlite"
    back_up(path, copy)
    with writing(path, make_record) as acknowledged:
        while acknowledged[0] < 6:
            time.sleep(0.01)
        found = restore(copy, path, author="ops")
        at_once = acknowledged[0]
        while acknowledged[0] < at_once + 3:
            time.sleep(0.01)
    kept = count(found.before)
    assert kept + count(path) - 3 == acknowledged[0]  # the three that the backup has are in both
    assert found.undone.lost["measurements"] == kept - 3


def test_a_backup_with_faults_is_restored_where_that_is_asked_for_alone(path, tmp_path):
    copy = tmp_path / "copy.sqlite"
    back_up(path, copy)
    change(copy, "UPDATE measurement SET seed = seed + 1 WHERE id = 2")
    with pytest.raises(DatabaseCorrupt, match=r"measurement 2 .*--faulty"):
        restore(copy, path, author="ops")
    assert count(path) == 3
    assert [one.name for one in tmp_path.glob("measurements.sqlite.*")] == []
    restore(copy, path, author="ops", faulty=True)
    with Database.open(path) as database, database.read() as connection:
        assert any("measurement 2" in one for one in integrity.faults(connection))


def test_a_database_is_no_backup_of_itself(path):
    with pytest.raises(DatabaseError, match="is the database itself"):
        restore(path, path, author="ops")


def token(name, **given):
    created = datetime(2026, 1, 1, tzinfo=UTC)
    return tokens.StoredToken(name=name, digest=f"of {name}", scopes=("read",), created_at=created, **given)


def noted(connection, action, subject, **given):
    who = {"author": "ops", "through": audit.COMMAND}
    return audit.add(connection, **who, action=action, subject=subject, **given)


def test_what_a_restoration_undoes_is_said_and_in_the_journal(path, tmp_path, make_record):
    now, copy = datetime.now(UTC), tmp_path / "copy.sqlite"
    names = ("stays", "revoked", "rotated", "distrusted", "expired")
    with Database.open(path) as database:
        with database.write() as connection:
            for name in names:
                gone = now - timedelta(days=1) if name == "expired" else None
                tokens.add(connection, token(name, expires_at=gone))
            tokens.add(connection, token("trusted", trusted=False))
            batch = submissions.add(connection, author="distrusted", received_at=now)
            records.add(connection, [make_record(5)], submission=batch)
        back_up(path, copy)
        with database.write() as connection:
            tokens.revoke(connection, name="revoked", when=now)
            tokens.revoke(connection, name="expired", when=now)
            tokens.revoke(connection, name="rotated", when=now + timedelta(hours=24))
            tokens.trust(connection, name="distrusted", trusted=False)
            tokens.trust(connection, name="trusted", trusted=True)
            tokens.add(connection, token("new"))
            noted(connection, audit.Action.TOKEN_REVOKE, "revoked")
            chosen = corrections.sendings(connection, submissions.Chosen(author="distrusted"))
            retraction = noted(connection, audit.Action.RETRACT, "those")
            corrections.retract(connection, chosen, entry=retraction, changed=len(chosen))
            records.add(connection, [make_record(9), make_record(10)])
    found = restore(copy, path, author="ops")
    assert [one.to_dict() for one in found.undone.unknown] == [
        {"name": "new", "scopes": ["read"], "trusted": True}
    ]
    assert [(one.name, one.digest) for one in found.undone.revived] == [
        ("revoked", "of revoked"),
        ("rotated", "of rotated"),
    ]
    assert (found.undone.trusted_again, found.undone.distrusted_again) == (("distrusted",), ("trusted",))
    assert (found.undone.counting_again, found.undone.retracted_again) == (1, 0)
    lost = {"measurements": 2, "imported": 0, "set_aside": 0, "releases": 0, "tokens": 1, "journal": 2}
    assert found.undone.lost == lost
    with Database.open(path) as database, database.read() as connection:
        (entry,) = audit.page(connection, limit=9)
        assert next(one for one in tokens.every(connection) if one.name == "revoked").valid_at(now)
    assert (entry["action"], entry["author"], entry["subject"]) == ("database.restore", "ops", "copy.sqlite")
    assert entry["details"] == {"before": found.before.name, "undone": found.undone.to_dict()}
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".")]
    # and back: what was retracted then counts now no more
    back = restore(found.before, path, author="ops").undone
    assert (back.revived, back.counting_again, back.retracted_again) == ((), 0, 1)
    assert back.lost["measurements"] == 0


@pytest.mark.parametrize("damage", [b"no database at all", None], ids=["overwritten", "cut off"])
def test_a_damaged_file_is_kept_beside_the_restored_one(path, tmp_path, damage):
    copy = tmp_path / "copy.sqlite"
    back_up(path, copy)
    damaged = path.read_bytes()[:5000] if damage is None else damage
    path.write_bytes(damaged)
    found = restore(copy, path, author="ops")
    assert found.before.read_bytes() == damaged
    assert found.undone is None
    assert str(path) in found.unread
    assert "Nothing was changed" not in found.unread
    assert "b'" not in found.unread
    assert count(path) == 3


@pytest.mark.parametrize("damaged", [False, True])
def test_files_are_given_to_the_user_and_the_mode_of_the_database(path, tmp_path, damaged):
    """Who runs the service may be another user than root, who restores."""
    copy, owner = tmp_path / "copy.sqlite", 12345 if os.geteuid() == 0 else os.geteuid()
    back_up(path, copy)
    if damaged:
        path.write_bytes(b"no database at all")
    os.chown(path, owner, -1)
    path.chmod(0o640)
    found = restore(copy, path, author="ops")
    for file in (path, found.before):
        assert (file.stat().st_uid, stat.S_IMODE(file.stat().st_mode)) == (owner, 0o640)


def test_what_others_own_and_cannot_be_given_is_for_who_restores_alone(path, tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError

    copy = tmp_path / "copy.sqlite"
    back_up(path, copy)
    path.chmod(0o644)
    monkeypatch.setattr(os, "chown", refused)
    assert stat.S_IMODE(restore(copy, path, author="ops").before.stat().st_mode) == 0o600


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_backup_that_is_not_there_is_not_to_be_made(path, tmp_path, is_empty):
    """An empty one, made as other missing databases are, would have replaced the database."""
    missing, content = tmp_path / "none.sqlite", path.read_bytes()
    if is_empty:
        missing.touch()
    with pytest.raises(DatabaseMissing, match="That is no backup, and nothing was changed") as caught:
        restore(missing, path, author="ops")
    assert str(missing) in str(caught.value)
    assert "upgrade" not in str(caught.value)
    assert path.read_bytes() == content


def test_corrections_that_a_restoration_undoes_are_listed_as_far_as_they_can_be_repeated(
    path, tmp_path, make_record
):
    now, copy = datetime.now(UTC), tmp_path / "copy.sqlite"

    def retracted(connection, author):
        chosen = submissions.Chosen(author=author)
        found, given = corrections.sendings(connection, chosen), {"author": author, "measurements": 1}
        entry = noted(connection, audit.Action.RETRACT, f"author {author}", details=given)
        corrections.retract(connection, found, entry=entry, changed=1)
        return entry

    def undone(connection, number):
        subject, given = f"entry {number}", {"entry": number}
        entry = noted(connection, audit.Action.UNDO, subject, details=given)
        corrections.undo(connection, undone=number, entry=entry, changed=1)

    with Database.open(path) as database:
        with database.write() as connection:
            for number, name in enumerate(("first", "second", "third")):
                batch = submissions.add(connection, author=name, received_at=now)
                records.add(connection, [make_record(20 + number)], submission=batch)
            before = retracted(connection, "first")
            submissions.quarantine(connection, submission=batch, lines=[("a line", "too fast")])
        back_up(path, copy)
        with database.write() as connection:
            retracted(connection, "second")
            undone(connection, retracted(connection, "third"))
            undone(connection, before)
            batch = submissions.add(connection, author="later", received_at=now)
            records.add(connection, [make_record(30)], submission=batch)
            retracted(connection, "later")
            noted(connection, audit.Action.RELEASE, "ids [1]", details={"ids": [1]})
            noted(connection, audit.Action.RELEASE, "ids [7]", details={"ids": [7]})
    found = restore(copy, path, author="ops").undone
    assert [one.to_dict() for one in found.corrections] == [
        {"action": "measurements.retract", "reason": "", "author": "second"},
        {"action": "measurements.undo", "reason": "", "entry": before},
        {"action": "measurements.release", "reason": "", "ids": [1]},
    ]


def test_a_file_that_opens_and_breaks_off_later_is_replaced_without_a_comparison(path, tmp_path):
    copy = tmp_path / "copy.sqlite"
    back_up(path, copy)
    damage(path, "token")
    found = restore(copy, path, author="ops")
    assert found.undone is None
    assert str(found.before) in found.unread
    assert count(path) == 3


def damage(path, table):
    """Overwrite the first page of a table."""
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (page,) = connection.execute(query, (table,)).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


@pytest.mark.parametrize("table", ["measurement", "environment"])
def test_a_damaged_page_that_no_comparison_reads_is_said(path, tmp_path, table):
    copy = tmp_path / "copy.sqlite"
    back_up(path, copy)
    damage(path, table)
    found = restore(copy, path, author="ops")
    assert str(found.before) in found.unread
    assert count(path) == 3
    assert restore(copy, path, author="ops").unread == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DatabaseLocked("it is locked"), MemoryError()])
def test_what_ends_the_search_for_faults_leaves_the_restoration_and_what_is_told_of_it(
    path, tmp_path, make_record, monkeypatch, error
):
    def ended(_):
        raise error

    copy = tmp_path / "copy.sqlite"
    back_up(path, copy)
    with Database.open(path) as database, database.write() as connection:
        records.add(connection, [make_record(30)])
    with monkeypatch.context() as patched:
        patched.setattr(integrity, "of_file", ended)
        found = restore(copy, path, author="ops", faulty=True)
    assert count(path) == 3
    assert found.undone.lost["measurements"] == 1
    assert not found.checked
    assert f"database check --database {found.before}" in found.unread
    assert type(error).__name__ in found.unread or "it is locked" in found.unread


def test_a_restoration_reads_no_record_of_what_was_there(path, tmp_path, monkeypatch):
    """Content hashes of 117,000 records took 51 s, before anything was told."""
    copy = tmp_path / "copy.sqlite"
    back_up(path, copy)
    monkeypatch.setattr(integrity, "_by_row", lambda *_: pytest.fail("records are read"))
    assert restore(copy, path, author="ops", faulty=True).unread == ""


def test_what_cannot_be_copied_changes_nothing(path, tmp_path):
    content = path.read_bytes()
    with pytest.raises(DatabaseReadOnly, match="exists already"):
        back_up(path, path)
    wrong = tmp_path / "wrong.sqlite"
    wrong.write_text("no database")
    with pytest.raises(DatabaseError, match="is not an SQLite database"):
        restore(wrong, path, author="ops")
    with pytest.raises(DatabaseError, match="pg_dump copies it"):
        back_up("postgresql://nobody@localhost/none", tmp_path / "copy.sqlite")
    assert path.read_bytes() == content


def test_a_copy_of_another_page_size_is_restored(path, tmp_path, make_record):
    copy = tmp_path / "copy.sqlite"
    back_up(path, copy)
    with closing(sqlite3.connect(copy)) as other:
        for line in ("PRAGMA journal_mode=DELETE", "PRAGMA page_size=1024", "VACUUM"):
            other.execute(line)
    with Database.open(path) as database, database.write() as connection:
        records.add(connection, [make_record(9)])
    assert restore(copy, path, author="ops").undone.lost["measurements"] == 1
    assert count(path) == 3


def test_a_database_that_another_process_holds_is_named(path, tmp_path, monkeypatch):
    copy = tmp_path / "copy.sqlite"
    back_up(path, copy)
    monkeypatch.setattr("kernel_selector.db.engine.backup.BUSY_S", 0.1)
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseError, match=f"could not be copied to {path}: database is locked"):
            restore(copy, path, author="ops")
    assert count(path) == 3


@contextmanager
def full_disk(monkeypatch, at):
    """The file that is written to as the one numbered `at`, from 0, gets no more pages than it has."""
    connect, numbers = sqlite3.connect, itertools.count()

    def connected(path, *given, **more):
        connection = connect(path, *given, **more)
        if not more.get("uri") and next(numbers) == at:
            connection.execute("PRAGMA max_page_count = 1")  # or as many as there are
        return connection

    with monkeypatch.context() as patch:
        patch.setattr("kernel_selector.db.engine.backup.sqlite3.connect", connected)
        yield


# of the files that are written: the copy of the backup, the look at what is there, the pages' sizes of both,
# the database, and what it had
@pytest.mark.parametrize("at", [0, 1, 4, 5])
def test_a_full_disk_changes_nothing_and_leaves_nothing(path, tmp_path, make_record, monkeypatch, at):
    """A sound database that could not be copied was taken for a damaged one, and moved away."""
    copy = tmp_path / "copies" / "copy.sqlite"
    copy.parent.mkdir()
    back_up(path, copy)
    with Database.open(copy) as larger, larger.write() as connection:
        records.add(connection, [make_record(number) for number in range(100, 600)])
    with Database.open(path) as service:  # it runs on
        with full_disk(monkeypatch, at), pytest.raises(DatabaseError, match=r"full\. Check the space"):
            restore(copy, path, author="ops")
        with service.write() as connection:
            records.add(connection, [make_record(9)])
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == [path.name]
    assert count(path) == 4


@pytest.mark.parametrize("at", [0, 1])
def test_a_full_disk_leaves_a_damaged_database_where_it_is(path, tmp_path, monkeypatch, at):
    """There was an empty file in its place."""
    copy = tmp_path / "copies" / "copy.sqlite"
    copy.parent.mkdir()
    back_up(path, copy)
    damaged = path.read_bytes()[:5000]
    path.write_bytes(damaged)
    with full_disk(monkeypatch, at), pytest.raises(DatabaseError, match=r"full\. Check the space"):
        restore(copy, path, author="ops")
    left = {one.name for one in tmp_path.iterdir() if one.is_file()}
    assert left <= {path.name, f"{path.name}-wal", f"{path.name}-shm"}  # no copy, nor what was moved
    assert path.read_bytes() == damaged
    assert restore(copy, path, author="ops").before.read_bytes() == damaged
    assert count(path) == 3


def test_a_backup_for_which_there_is_no_room_is_not_left_behind(path, tmp_path, monkeypatch):
    copy = tmp_path / "copy.sqlite"
    with full_disk(monkeypatch, 0), pytest.raises(DatabaseError, match=r"full\. Check the space"):
        back_up(path, copy)
    assert not copy.exists()
    back_up(path, copy)
    assert count(copy) == 3
