"""Who wrote a row is recorded, what was set aside is kept, and tokens are digests that can end."""

from datetime import UTC, datetime, timedelta

import pytest

from kernel_selector.db import records, snapshot, submissions, tokens

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def test_who_wrote_a_row(database, make_record):
    with database.write() as connection:
        records.add(connection, [make_record(0)])
        number = submissions.add(connection, author="worker-7", received_at=NOW)
        # the first of these is there already, and stays what it was
        assert records.add(connection, [make_record(0), make_record(1)], submission=number) == 1
        found = list(records.page(connection, after=0, limit=10, equal={}))
    assert [one.author for one in found] == [None, "worker-7"]
    assert [one.record for one in found] == [make_record(0), make_record(1)]


def test_who_wrote_it_is_not_part_of_its_identity(database, make_record):
    with database.write() as connection:
        number = submissions.add(connection, author="worker-7", received_at=NOW)
        records.add(connection, [make_record(0)], submission=number)
        one = snapshot(connection)
        assert records.add(connection, [make_record(0)]) == 0
        assert snapshot(connection) == one


def test_pages(database, make_record):
    made = [make_record(number) for number in range(5)]
    with database.write() as connection:
        records.add(connection, made)
        first = list(records.page(connection, after=0, limit=2, equal={}))
        rest = list(records.page(connection, after=first[-1][0], limit=10, equal={}))
        assert [one.record for one in first + rest] == made
        for equal, count in (
            ({"operator": "lstm"}, 5),
            ({"operator": "gru"}, 0),
            ({"device": made[0].device.key, "status": "ok", "implementation": "torch_lstm"}, 5),
            ({"status": "crashed"}, 0),
        ):
            assert len(list(records.page(connection, after=0, limit=10, equal=equal))) == count


def test_what_is_set_aside_is_kept_once_and_seen_by_no_choice(database):
    with database.write() as connection:
        before = snapshot(connection)
        number = submissions.add(connection, author="worker-7", received_at=NOW)
        lines = [("{a}", "too fast"), ("{b}", "from the future")]
        assert submissions.quarantine(connection, submission=number, lines=lines) == 2
        assert submissions.quarantine(connection, submission=number, lines=lines) == 0
        assert submissions.quarantine(connection, submission=number, lines=[]) == 0
        assert snapshot(connection) == before
        first, second = submissions.quarantined(connection, after=0, limit=10)
        assert (first["record"], first["reason"], first["author"]) == ("{a}", "too fast", "worker-7")
        assert list(submissions.quarantined(connection, after=first["id"], limit=10)) == [second]


def stored(**more):
    given = {"name": "a", "digest": "d", "scopes": ("read",), "created_at": NOW, **more}
    return tokens.StoredToken(**given)


def test_tokens_come_back_and_end(database):
    with database.write() as connection:
        tokens.add(connection, stored(scopes=("measure", "read"), expires_at=NOW + timedelta(days=1)))
        tokens.add(connection, stored(digest="e"))
        tokens.add(connection, stored(digest="f", name="b"))
        assert tokens.every(connection)[0].scopes == ("measure", "read")
        assert tokens.revoke(connection, name="a", when=NOW) == 2
        assert tokens.revoke(connection, name="a", when=NOW) == 0
        first, second, third = tokens.every(connection)
    assert not first.valid_at(NOW)
    assert not second.valid_at(NOW)
    assert third.valid_at(NOW + timedelta(days=999))


@pytest.mark.parametrize(("after", "valid"), [(0, True), (1, False), (2, False)])
def test_a_token_expires(after, valid):
    token = stored(expires_at=NOW + timedelta(hours=1))
    assert token.valid_at(NOW + timedelta(hours=after)) is valid
