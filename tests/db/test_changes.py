"""Problems of which other measurements count than at an earlier moment."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from kernel_selector.db import Database, audit, changes, corrections, imported, records, submissions, tokens
from kernel_selector.db.changes import Changes
from kernel_selector.db.submissions import Chosen

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def send(connection, author, found):
    batch = author and submissions.add(connection, author=author, received_at=NOW)
    records.add(connection, found, submission=batch)


def entry(connection, action=audit.Action.RETRACT):
    return audit.add(connection, author="me", through="command", action=action, subject="x", reason="y")


def retract(connection, author):
    number = entry(connection)
    found = corrections.sendings(connection, Chosen(author=author))
    count = corrections.silenced(connection, found)
    corrections.retract(connection, found, entry=number, changed=count)


def undo(connection):
    count = corrections.undoable(connection, 1)
    corrections.undo(connection, undone=1, entry=entry(connection, audit.Action.UNDO), changed=count)


def trust(connection, name, *, trusted):
    tokens.trust(connection, name=name, trusted=trusted)


CHANGES = {
    "nothing": ((), lambda *_: None),
    "a new problem": ((3,), lambda made, to: send(to, None, [made[3]])),
    "another run": ((0,), lambda made, to: send(to, None, [replace(made[0], seed=7)])),
    "a copy of the owner's": ((), lambda made, to: send(to, None, [made[1]])),
    "another author of a record": ((0,), lambda made, to: send(to, "ann", [made[0]])),
    "a retraction": ((1, 2), lambda _, to: retract(to, "ann")),
    "trust": ((1, 2), lambda _, to: trust(to, "ann", trusted=False)),
    "trust as before": ((), lambda _, to: trust(to, "ann", trusted=True)),
    "trust in who sent nothing": ((), lambda _, to: trust(to, "bob", trusted=False)),
}


@pytest.fixture
def made(database, make_record):
    """Records of four problems: the owner has the first, ann sent the next two, and the last is not there."""
    found = [make_record(number) for number in range(4)]
    with database.write() as connection:
        for name in ("ann", "bob"):
            token = tokens.StoredToken(name=name, digest=name, scopes=("measure",), created_at=NOW)
            tokens.add(connection, token)
        send(connection, None, found[:1])
        send(connection, "ann", found[1:3])
    return found


def expected(found, numbers):
    pair = found[0].problem.operator, found[0].device.key
    keys = {found[number].problem.key for number in numbers}
    return Changes({pair: keys} if numbers else {}, frozenset(), frozenset())


@pytest.mark.parametrize(("numbers", "change"), CHANGES.values(), ids=CHANGES)
def test_what_a_change_concerns(database, made, numbers, change):
    with database.read() as connection:
        earlier = changes.moment(connection)
    with database.write() as connection:
        change(made, connection)
    with database.read() as connection:
        assert changes.since(connection, earlier) == expected(made, numbers)
        assert changes.since(connection, changes.moment(connection)) == Changes({}, frozenset(), frozenset())


def test_undoing_and_importing(database, made):
    with database.write() as connection:
        retract(connection, "ann")
        earlier = changes.moment(connection)
        undo(connection)
        row = imported.ImportedRow({"size": 1}, "a", "ok", 1.0, None)
        imported.add(connection, operator="one", device="card", rows=[row], source="x", imported_at=NOW)
        problems, operators, trained = changes.since(connection, earlier)
    assert (problems, operators, trained) == (expected(made, (1, 2)).problems, {"one"}, set())


@pytest.mark.usefixtures("made")
def test_rows_in_the_place_of_others_are_unknown_changes(database, make_record, tmp_path):
    with database.read() as connection:
        earlier = changes.moment(connection)
    with Database.open(tmp_path / "other", create=True) as other, other.write() as connection:
        assert changes.since(connection, earlier) is None  # fewer
        records.add(connection, [make_record(number) for number in range(10, 14)])
        assert changes.since(connection, earlier) is None  # others


def test_rows_in_another_order_are_unknown_changes(database, make_record, tmp_path):
    """As after an older copy was put in the place of a database, and given what it lacked but for some."""
    first, second, last = (make_record(number) for number in (1, 2, 3))
    with database.write() as connection:
        records.add(connection, [first, second, last])
        earlier = changes.moment(connection)
    with Database.open(tmp_path / "other", create=True) as other, other.write() as connection:
        records.add(connection, [first, make_record(4), last])
        assert changes.since(connection, earlier) is None
