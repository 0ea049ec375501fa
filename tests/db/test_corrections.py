"""What is retracted counts nowhere, nothing is deleted, and undoing brings back exactly what was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from kernel_selector.db import (
    Database,
    audit,
    corrections,
    counters,
    freshness_rows,
    integrity,
    records,
    snapshot,
    submissions,
    tokens,
    transfer,
)
from kernel_selector.db.corrections import Aside
from kernel_selector.db.submissions import Chosen

THEN = datetime(2026, 5, 1, tzinfo=UTC)


def entry(connection, action=audit.Action.RETRACT):
    return audit.add(connection, author="me", through="command", action=action, subject="x", reason="y")


def retract(connection, **chosen):
    number = entry(connection)
    found = corrections.sendings(connection, Chosen(**chosen))
    count = corrections.silenced(connection, found)
    return number, corrections.retract(connection, found, entry=number, changed=count)


def undo(connection, number):
    count = corrections.undoable(connection, number)
    undoing = entry(connection, audit.Action.UNDO)
    return corrections.undo(connection, undone=number, entry=undoing, changed=count)


def answers(connection):
    """All that is read of measurements."""
    device, environment = (getattr(read_all(connection)[0], name) for name in ("device", "environment"))
    where = {"operator": "lstm", "device": device, "environment": environment, "policy": "quick"}
    return (
        snapshot(connection),
        records.total(connection),
        records.counts(connection),
        counters.versions(connection),
        counters.problems(connection),
        read_all(connection),
        list(records.newest(connection, operator="lstm", device_key=device.key)),
        list(freshness_rows.freshness_rows(connection)),
        records.finished(connection, **where),
        [one.record for one in records.page(connection, after=0, limit=99, equal={})],
        records.devices(connection),
        transfer.difference(connection, connection).known,
        list(integrity.faults(connection)),
    )


def read_all(connection):
    return list(records.find(connection))


@pytest.fixture
def sent(database, make_record):
    """A database with what was measured there, two records of ann and one of bob, who has another device."""
    other = make_record().device.from_dict(make_record().device.to_dict() | {"name": "NVIDIA A100"})
    with database.write() as connection:
        records.add(connection, [make_record(0)])
        before = answers(connection)
        for number, author in enumerate(("ann", "ann", "bob"), start=1):
            when = THEN + timedelta(days=number)
            batch = submissions.add(connection, author=author, received_at=when)
            given = {"device": other} if author == "bob" else {}
            records.add(connection, [make_record(number, **given)], submission=batch)
    return database, before


def test_what_is_retracted_counts_nowhere_and_undone_counts_as_before(sent):
    database, before = sent
    with database.write() as connection:
        everything = answers(connection)
        first, found = retract(connection, author="ann")
        assert (found.measurements, len(found.ids)) == (2, 2)
        assert (found.operators, found.since) == (("lstm",), THEN + timedelta(days=1))
        second, found = retract(connection, since=THEN + timedelta(days=2))
        assert found.measurements == 1  # one of the two is retracted already
        assert answers(connection) == before
        assert connection.exec_driver_sql("SELECT count(*) FROM measurement").scalar_one() == 4
        undo(connection, second)  # the first stays
        assert [
            one.record.problem.hidden for one in records.page(connection, after=0, limit=9, equal={})
        ] == [
            64,
            67,
        ]
        undo(connection, first)
        assert answers(connection) == everything


@pytest.mark.parametrize(
    ("chosen", "hidden"),
    [
        ({"author": "ann", "since": THEN + timedelta(days=2)}, [66]),
        ({"batch": 3}, [67]),
        ({"since": datetime(2020, 1, 1, tzinfo=UTC)}, [64, 65, 66, 67]),
        ({"author": "bob", "batch": 1}, []),
    ],
    ids=str,
)
def test_what_is_chosen(sent, chosen, hidden):
    database, _ = sent
    with database.read() as connection:
        sent = corrections.sendings(connection, Chosen(**chosen))
        found = records.by_id(connection, [one.measurement for one in sent])
        assert [record.problem.hidden for _, record in found] == hidden


def test_what_is_retracted_is_not_given_on_and_not_taken_again(sent, tmp_path, make_record):
    database, _ = sent
    with (
        Database.open(tmp_path / "other.sqlite", create=True) as other,
        database.write() as mine,
        other.write() as theirs,
    ):
        retract(mine, author="ann")
        assert records.add(mine, [make_record(1)]) == 0
        assert transfer.merge(mine, theirs).new == {"lstm": 2}
        records.add(theirs, [make_record(1), make_record(9)])
        assert transfer.merge(theirs, mine).new == {"lstm": 1}
        assert [one.problem.hidden for one in read_all(mine)] == [64, 67, 73]


def test_a_release_counts_until_it_is_undone_and_again(sent, make_record):
    database, _ = sent
    with database.write() as connection:
        batch = submissions.add(connection, author="bob", received_at=THEN)
        lines = [(make_record(7).to_json(), "too fast"), (make_record(8).to_json(), "too slow")]
        submissions.quarantine(connection, submission=batch, lines=lines)
        everything = answers(connection)

        def aside():
            found = submissions.quarantined(connection, Chosen(author="bob"), limit=9)
            return [row["id"] for row in found]

        first, second = aside()
        for _ in range(2):
            number = entry(connection, audit.Action.RELEASE)
            corrections.release(connection, [Aside(first, batch, make_record(7))], entry=number)
            assert aside() == [second]
            assert [one.problem.hidden for one in read_all(connection)] == [64, 65, 66, 67, 71]
            undo(connection, number)
            assert aside() == [first, second]
            assert answers(connection) == everything


def test_the_journal_by_the_page(database):
    with database.write() as connection:
        numbers = [entry(connection) for _ in range(5)]
        audit.add(connection, author="ann", through="service", action=audit.Action.UPLOAD, subject="batch 1")

        def page(**given):
            return [one["id"] for one in audit.page(connection, **given)]

        assert page(limit=2) == numbers[:2]
        assert page(after=numbers[1], limit=9, author="me") == numbers[2:]
        assert page(limit=2, latest=True) == [numbers[4], numbers[4] + 1]
        assert page(limit=9, action=audit.Action.UPLOAD) == [numbers[4] + 1]
        assert page(limit=9, since=datetime.now(UTC) + timedelta(days=1)) == []
        assert audit.entry(connection, numbers[4] + 2) is None


def test_a_retracted_author_who_is_not_trusted_leaves_the_snapshot_of_before(database, make_record):
    with database.write() as connection:
        token = tokens.StoredToken(
            name="eve", digest="d", scopes=("measure",), created_at=THEN, trusted=False
        )
        tokens.add(connection, token)
        records.add(connection, [make_record(0)])
        before = snapshot(connection)
        batch = submissions.add(connection, author="eve", received_at=THEN)
        records.add(connection, [make_record(1)], submission=batch)
        sent = snapshot(connection)
        number, _ = retract(connection, author="eve")
        assert snapshot(connection) == before != sent
        undo(connection, number)
        assert snapshot(connection) == sent


def test_undoing_a_release_leaves_what_the_author_sent_himself(database, make_record):
    line = make_record(0).to_json()
    with database.write() as connection:
        first = submissions.add(connection, author="ann", received_at=THEN)
        submissions.quarantine(connection, submission=first, lines=[(line, "too fast")])
        second = submissions.add(connection, author="ann", received_at=THEN + timedelta(days=1))
        assert records.add(connection, [make_record(0)], submission=second) == 1
        before = snapshot(connection)
        (aside,) = submissions.quarantined(connection, limit=9)
        for _ in range(2):
            number = entry(connection, audit.Action.RELEASE)
            found = corrections.release(connection, [Aside(aside["id"], first, make_record(0))], entry=number)
            assert found.measurements == 0  # it counted before
            assert found.operators == ("lstm",)
            assert corrections.undoable(connection, number) == 0
            undone = undo(connection, number)
            assert (undone.measurements, undone.operators) == (0, ("lstm",))
            assert (records.total(connection), snapshot(connection)) == (1, before)
            assert len(list(submissions.quarantined(connection, limit=9))) == 1
            assert corrections.undoable(connection, number) is None
        assert list(integrity.faults(connection)) == []


@pytest.mark.parametrize("authors", [("ann", "ann"), ("ann", "bob")], ids=" and ".join)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
def test_a_record_of_two_lines_counts_while_one_of_them_is_released(database, make_record, authors, order):
    lines = [make_record(0).to_json(), make_record(0).to_json() + " "]
    with database.write() as connection:
        batches = [submissions.add(connection, author=author, received_at=THEN) for author in authors]
        for batch, line in zip(batches, lines, strict=True):
            submissions.quarantine(connection, submission=batch, lines=[(line, "too fast")])
        aside = [
            Aside(one["id"], one["batch"], make_record(0))
            for one in submissions.quarantined(connection, limit=9)
        ]
        assert [one.batch for one in aside] == batches

        def release(which):
            number = entry(connection, audit.Action.RELEASE)
            return number, corrections.release(connection, [aside[which]], entry=number).measurements

        def state():
            assert list(integrity.faults(connection)) == []
            held = {one["id"] for one in submissions.quarantined(connection, limit=9)}
            return records.total(connection), [one.id in held for one in aside]

        (first, count), (second, another) = release(0), release(1)
        assert (count, another, state()) == (1, 0, (1, [False, False]))
        entries = first, second
        assert undo(connection, entries[order[0]]).measurements == 0
        assert state() == (1, [one == order[0] for one in range(2)])
        assert undo(connection, entries[order[1]]).measurements == 1
        assert state() == (0, [True, True])
        again, count = release(order[0])
        assert (count, state()) == (1, (1, [one == order[1] for one in range(2)]))
        assert undo(connection, again).measurements == 1
        assert state() == (0, [True, True])
