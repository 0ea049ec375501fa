"""A record that several sent counts as far as one of them makes it count, and is stored once."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select, text

from kernel_selector.db import (
    Database,
    audit,
    contested,
    corrections,
    integrity,
    records,
    snapshot,
    submissions,
    tokens,
    transfer,
)
from kernel_selector.db.corrections import Aside
from kernel_selector.db.engine.backup import back_up
from kernel_selector.db.schema.corrections import Authorship
from kernel_selector.db.schema.measurements import Quarantined
from kernel_selector.db.submissions import Chosen
from tests.grids import thinned

THEN = datetime(2026, 5, 1, tzinfo=UTC)
OWNER = None


@pytest.fixture
def made(database):
    """A database with tokens: those whose names begin with u are not trusted."""
    with database.write() as connection:
        for name in ("t1", "t2", "u1", "u2"):
            token = tokens.StoredToken(
                name=name, digest=name, scopes=("measure",), created_at=THEN, trusted=name[0] == "t"
            )
            tokens.add(connection, token)
    return database


def send(connection, author, found, days=0):
    """Number of new records, and the batch."""
    batch = None
    if author is not OWNER:
        batch = submissions.add(connection, author=author, received_at=THEN + timedelta(days=days))
    return records.add(connection, found, submission=batch), batch


def entry(connection, action=audit.Action.RETRACT):
    return audit.add(connection, author="me", through="command", action=action, subject="x", reason="y")


def retract(connection, **chosen):
    number = entry(connection)
    found = corrections.sendings(connection, Chosen(**chosen))
    count = corrections.silenced(connection, found)
    return number, corrections.retract(connection, found, entry=number, changed=count).measurements


def undo(connection, number):
    count = corrections.undoable(connection, number)
    undoing = entry(connection, audit.Action.UNDO)
    return corrections.undo(connection, undone=number, entry=undoing, changed=count).measurements


def credits(connection):
    """Author and batch that each record counts through, by its size."""
    found = records.page(connection, after=0, limit=99, equal={})
    return {one.record.problem.hidden - 64: (one.author, one.batch) for one in found}


def authors(connection):
    return {number: author for number, (author, _) in credits(connection).items()}


def rows(connection):
    return connection.execute(select(func.count()).select_from(Authorship)).scalar_one()


@pytest.mark.parametrize(
    ("order", "credited"),
    [
        (("u1", "t1"), "t1"),
        (("u1", "u2"), "u1"),
        (("t1", "u1"), "t1"),
        (("t1", "t2"), "t1"),
        (("u1", "u2", "t2", "t1"), "t2"),
        (("u1", "t1", OWNER), "t1"),
        (("u1", OWNER), "u1"),
        ((OWNER, "u1", "t1"), OWNER),
    ],
)
def test_whom_a_record_counts_through(made, make_record, order, credited):
    with made.write() as connection:
        assert [send(connection, author, [make_record()])[0] for author in order] == [1] + [0] * (
            len(order) - 1
        )
        assert authors(connection) == {0: credited}
        (claim,) = contested.claims(connection, operator="lstm") if credited == "u1" else [None]
        assert claim is None or (claim.author, claim.trusted) == ("u1", False)
        assert list(integrity.faults(connection)) == []


def test_trust_that_changes_is_followed(made, make_record):
    with made.write() as connection:
        for author in ("t1", "t2"):
            send(connection, author, [make_record()])
        tokens.trust(connection, name="t1", trusted=False)
        assert authors(connection) == {0: "t2"}
        tokens.trust(connection, name="t2", trusted=False)
        assert authors(connection) == {0: "t1"}


def test_the_same_author_adds_no_rows(made, make_record):
    found = [make_record(number) for number in range(3)]
    with made.write() as connection:
        send(connection, "u1", found)
        send(connection, "u1", found)
        send(connection, OWNER, [make_record(9)])
        send(connection, OWNER, [make_record(9)])
        assert rows(connection) == 0
        for _ in range(5):
            send(connection, "t1", found)
        assert rows(connection) == 6  # the first author and another one, of each
        for author in ("u1", "t1", "u2", "u2"):
            send(connection, author, [*found, *found])
        assert rows(connection) == 9
        assert records.total(connection) == 4
        assert list(integrity.faults(connection)) == []


def test_what_one_author_sent_is_retracted_alone(made, make_record):
    with made.write() as connection:
        send(connection, "u1", [make_record(0), make_record(1)])
        _, second = send(connection, "t1", [make_record(1), make_record(2)])
        before = snapshot(connection)
        first, count = retract(connection, author="u1")
        assert count == 1  # the other one counts on
        assert credits(connection) == {1: ("t1", second), 2: ("t1", second)}
        assert records.total(connection) == 2
        assert list(integrity.faults(connection)) == []
        other, count = retract(connection, batch=second)
        assert count == 2
        assert authors(connection) == {}
        assert retract(connection, author="u1")[1] == 0  # it did not count
        assert undo(connection, other) == 2
        assert authors(connection) == {1: "t1", 2: "t1"}
        assert undo(connection, first) == 0  # the third entry has it, too
        assert snapshot(connection) != before
        assert list(integrity.faults(connection)) == []


def test_undoing_leaves_the_snapshot_of_before(made, make_record):
    with made.write() as connection:
        send(connection, "u1", [make_record(0), make_record(1)])
        alone = snapshot(connection)
        send(connection, "t1", [make_record(0)])
        both = snapshot(connection)
        of_first, _ = retract(connection, author="u1")
        second_alone = snapshot(connection)
        undo(connection, of_first)
        assert snapshot(connection) == both
        of_second, _ = retract(connection, author="t1")
        assert snapshot(connection) == alone
        undo(connection, of_second)
        assert len({alone, both, second_alone}) == 3


def test_a_copy_of_the_owners_changes_nothing(made, make_record):
    with made.write() as connection:
        send(connection, "t1", [make_record(0), make_record(1)])
        send(connection, "t2", [make_record(0, seed=1), make_record(1)])
        send(connection, "u1", [make_record(2)])
        before = snapshot(connection), credits(connection), rows(connection)
        send(connection, OWNER, [make_record(number) for number in range(3)])
        assert (snapshot(connection), credits(connection), rows(connection)) == before
        assert list(integrity.faults(connection)) == []


def test_sent_again_after_a_retraction(made, make_record):
    with made.write() as connection:
        send(connection, "u1", [make_record(0), make_record(1)])
        number, _ = retract(connection, author="u1")
        assert send(connection, "u1", [make_record(0)])[0] == 0
        assert authors(connection) == {}  # it stays retracted
        send(connection, OWNER, [make_record(0)])
        assert authors(connection) == {}  # a merge may bring what was given on from here
        send(connection, "t1", [make_record(0)])
        assert authors(connection) == {0: "t1"}
        assert (records.total(connection), list(integrity.faults(connection))) == (1, [])
        undo(connection, number)
        assert authors(connection) == {0: "t1", 1: "u1"}


def test_a_merge_leaves_a_record_to_its_author(made, make_record, tmp_path):
    with (
        Database.open(tmp_path / "other.sqlite", create=True) as other,
        made.write() as mine,
        other.write() as theirs,
    ):
        send(mine, "u1", [make_record(0)])
        records.add(theirs, [make_record(0)])
        assert transfer.merge(theirs, mine).known == {"lstm": 1}
        assert authors(mine) == {0: "u1"}
        assert [one.trusted for one in contested.claims(mine, operator="lstm")] == [False]
        send(mine, "t1", [make_record(0)])  # the owner's word, where he has a trusted token
        assert retract(mine, author="u1")[1] == 0
        assert authors(mine) == {0: "t1"}
        assert transfer.merge(mine, theirs).known == {"lstm": 1}
        assert (authors(theirs), rows(theirs)) == ({0: OWNER}, 0)


@pytest.mark.parametrize("kind", ["copy", "merged"])
def test_what_comes_back_by_a_merge_stays_its_senders(tmp_path, make_record, kind):
    path, other = tmp_path / "measured.sqlite", tmp_path / "other.sqlite"
    with Database.open(path, create=True) as database, database.write() as connection:
        for name in ("t1", "u1"):
            tokens.add(
                connection,
                tokens.StoredToken(
                    name=name, digest=name, scopes=("measure",), created_at=THEN, trusted=name == "t1"
                ),
            )
        for number, sender in enumerate((OWNER, "t1", "u1")):
            send(connection, sender, [make_record(number)])
    if kind == "copy":
        back_up(path, other)
    with Database.open(path) as database, Database.open(other, create=True) as source:
        if kind == "merged":
            with database.read() as mine, source.write() as theirs:
                assert transfer.merge(mine, theirs).new == {"lstm": 3}
        with source.read() as theirs, database.write() as mine:
            assert transfer.merge(theirs, mine).known == {"lstm": 3}
            assert authors(mine) == {0: OWNER, 1: "t1", 2: "u1"}
            assert rows(mine) == 0
            number, count = retract(mine, author="t1")
            assert count == 1
            undo(mine, number)
            tokens.trust(mine, name="t1", trusted=False)
            claims = contested.claims(mine, operator="lstm")
            assert [one.author for one in claims] == ["t1", "u1"]


def test_a_line_set_aside_is_each_authors(made, make_record):
    line = make_record(0).to_json()
    with made.write() as connection:
        batches = {}
        for author in ("u1", "t1"):
            batch = submissions.add(connection, author=author, received_at=THEN)
            batches[author] = batch
            assert submissions.quarantine(connection, submission=batch, lines=[(line, "too fast")]) == 1
            assert submissions.quarantine(connection, submission=batch, lines=[(line, "too fast")]) == 0
        assert submissions.aside(connection, [line]) == [True]
        (found,) = submissions.quarantined(connection, Chosen(author="t1"), limit=9)
        aside = {
            one["author"]: Aside(one["id"], one["batch"], make_record(0))
            for one in submissions.quarantined(connection, limit=9)
        }
        assert aside["t1"].id == found["id"]
        releases = {}
        for author in ("u1", "t1"):
            releases[author] = entry(connection, audit.Action.RELEASE)
            corrections.release(connection, [aside[author]], entry=releases[author])
        assert credits(connection) == {0: ("t1", batches["t1"])}
        assert undo(connection, releases["t1"]) == 0
        assert credits(connection) == {0: ("u1", batches["u1"])}
        assert undo(connection, releases["u1"]) == 1
        assert credits(connection) == {}
        assert connection.execute(select(func.count()).select_from(Quarantined)).scalar_one() == 2
        assert len(list(submissions.quarantined(connection, limit=9))) == 2
        corrections.release(connection, [aside["t1"]], entry=entry(connection, audit.Action.RELEASE))
        assert credits(connection) == {0: ("t1", batches["t1"])}
        assert list(integrity.faults(connection)) == []


def test_a_copy_makes_no_device_known(made, make_record):
    record = make_record()
    quick = type(record.device).from_dict(record.device.to_dict() | {"launch_us": 0.5})
    with made.write() as connection:
        send(connection, "t1", [record])
        send(connection, "u1", [make_record(1, device=quick)])
        assert records.devices(connection) == [record.device]
        send(connection, "t2", [make_record(1, device=quick)])
        assert records.devices(connection) == [quick]


@pytest.mark.parametrize("seed", thinned(range(8), lambda seed: [min(seed, 2)]))  # three orders each time
def test_counts_follow_any_order_of_sending_retracting_and_undoing(made, make_record, seed):
    """Against a plain model: a record counts while an author is left of whom no entry retracts it."""
    draw = random.Random(seed)
    sent, marks, done = {}, {}, []  # (record, author) in order; entries that retract it; entries
    with made.write() as connection:
        for _ in range(40):
            step = draw.choice(("send", "send", "send", "retract", "undo"))
            if step == "send":
                author, chosen = draw.choice((OWNER, "t1", "u1", "u2")), draw.sample(range(6), 3)
                send(connection, author, [make_record(number) for number in chosen])
                for number in chosen:
                    if author is OWNER and any(one[0] == number for one in sent):
                        continue  # a copy
                    sent.setdefault((number, author), True)
                    marks.setdefault((number, author), set())
            elif step == "retract":
                author = draw.choice(("t1", "u1", "u2"))
                before = {number for (number, _), by in marks.items() if not by}
                number, count = retract(connection, author=author)
                if any(one[1] == author for one in sent):
                    done.append(number)
                for one in sent:
                    if one[1] == author:
                        marks[one].add(number)
                after = {one for (one, _), by in marks.items() if not by}
                assert count == len(before - after)
            elif done:
                number = done.pop(draw.randrange(len(done)))
                before = {one for (one, _), by in marks.items() if not by}
                expected = {one for (one, _), by in marks.items() if not by - {number}}
                assert undo(connection, number) == len(expected - before)
                for by in marks.values():
                    by.discard(number)
            counting = {number for (number, _), by in marks.items() if not by}
            assert authors(connection).keys() == counting
            assert records.total(connection) == len(counting)
            assert list(integrity.faults(connection)) == []
        order = {OWNER: 0, "t1": 1, "u1": 2, "u2": 2}
        for number, author in authors(connection).items():
            standing = [one for (size, one), by in marks.items() if size == number and not by]
            assert author == min(standing, key=order.__getitem__)


def test_authors_that_changed_otherwise_are_found(sqlite_database, make_record):
    with sqlite_database.write() as connection:
        send(connection, "t1", [make_record(0), make_record(1)])
        send(connection, "t2", [make_record(0), make_record(1)])
        assert list(integrity.faults(connection)) == []
        for name in (
            connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars().all()
        ):
            connection.execute(text(f"DROP TRIGGER {name}"))
        connection.execute(text("UPDATE authorship SET submission_id = 1 WHERE id = 3"))
        connection.execute(text("DELETE FROM authorship WHERE id = 2"))
        faults = list(integrity.faults(connection))
        assert "authorship 3 is not what was stored: its content hash is another" in faults
        assert "measurement 2 has several authors, and the first is not among them" in faults
