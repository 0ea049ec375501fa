"""What is counted with each measurement is what counting them all would give."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import select

from kernel_selector.db import Database, DatabaseError, counters, records, snapshot
from kernel_selector.db.engine import migrations
from kernel_selector.db.schema.measurements import Measurement
from kernel_selector.kernels.contract import Status

LATE, EARLY = datetime(2027, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)


def some_records(make_record):
    """Of two versions on two devices, ended in two ways, the last measured neither first nor last."""
    other = replace(make_record().device, name="A processor", kind="cpu")
    return [
        make_record(0),
        make_record(1, measured_at=LATE),
        make_record(2, measured_at=EARLY),
        make_record(3, implementation_version="ba9876543210"),
        make_record(4, device=other),
        make_record(5, status=Status.CRASHED, reason="signal 11"),
        *(make_record(6, seed=seed) for seed in range(300)),
    ]


def counted(connection):
    """All that is answered from what was counted."""
    return (
        records.total(connection),
        records.counts(connection),
        snapshot(connection),
        counters.digest(connection),
    )


def check_all(connection):
    hashes = connection.execute(select(Measurement.content_hash)).scalars().all()
    assert counters.digest(connection) == sum(int(text, 16) for text in hashes)
    assert records.total(connection) == len(hashes)
    assert sum(row["count"] for row in records.counts(connection)) == len(hashes)


def test_parts_again_and_in_another_order_count_once(database, make_record):
    made = some_records(make_record)
    for part in (made[:4], made[2:9], made[::-1], []):
        with database.write() as connection:
            records.add(connection, [*part, *part[:2]])
            check_all(connection)
    with database.read() as connection:
        assert records.total(connection) == len(made)
        last = {(row["device"], row["status"]): row["last_measured_at"] for row in records.counts(connection)}
    assert last["NVIDIA H200", "ok"] == LATE
    assert set(last.values()) == {LATE, made[0].measured_at}


def test_what_was_undone_is_not_counted(database, make_record):
    def interrupted():
        yield from some_records(make_record) * 4  # more than a batch
        raise KeyError

    with pytest.raises(KeyError), database.write() as connection:
        records.add(connection, interrupted())
    with database.read() as connection:
        check_all(connection)
        assert records.total(connection) == 0


def test_an_older_database_is_counted_when_it_is_upgraded(database, database_url, make_record):
    from alembic import command

    with database.write() as connection:
        records.add(connection, some_records(make_record))
        before = counted(connection)
    database.close()
    with Database.migrating(database_url) as connection:
        command.downgrade(migrations.configuration(connection), "0005")
    with Database.open(database_url, create=True) as again, again.write() as connection:
        assert counted(connection) == before
        assert records.add(connection, some_records(make_record)) == 0
        assert records.add(connection, [make_record(9)]) == 1
        check_all(connection)


def test_records_that_others_stored_meanwhile_are_refused(database, make_record, monkeypatch):
    with database.write() as connection:
        records.add(connection, [make_record(0)])
    monkeypatch.setattr(records.authorships, "sent", lambda *_: [])  # as if they came after the look
    with pytest.raises(DatabaseError, match="meanwhile"), database.write() as connection:
        records.add(connection, [make_record(0), make_record(1)])
    with database.read() as connection:
        check_all(connection)
        assert records.total(connection) == 1
