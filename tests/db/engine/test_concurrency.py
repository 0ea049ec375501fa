"""Many readers and writers at once: each sees one state, writers take turns, nothing is lost."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_selector.db import Database, DatabaseLocked, records

ROOT = Path(__file__).parents[3]
APPEND = """
import json, sys
from kernel_selector.db import Database, records
from kernel_selector.kernels.contract import Record
lines = sys.stdin.read().splitlines()
with Database.open(sys.argv[1], create=True) as database:
    for line in lines:
        with database.write() as connection:
            before = records.total(connection)
            assert records.add(connection, [Record.from_json(line)]) == 1
            assert records.total(connection) == before + 1
"""


def test_a_lock_is_waited_for_and_then_named(filled, make_record, total):
    with Database.open(filled, busy_timeout_s=0.2) as database, Database.open(filled) as other:
        with other.write() as writing:
            records.add(writing, [make_record(7)])
            with (
                pytest.raises(DatabaseLocked, match=r"measurements\.sqlite is locked.*try again"),
                database.write(),
            ):
                pass
            assert total(database) == 3  # readers go on
        with database.write() as connection:
            assert records.total(connection) == 4


@pytest.mark.postgres
def test_a_lock_of_postgresql(postgres_url):
    with (
        Database.open(postgres_url, create=True, busy_timeout_s=0.2) as database,
        Database.open(postgres_url) as other,
        other.write(),
        pytest.raises(DatabaseLocked, match="is locked"),
        database.write(),
    ):
        pass


def test_an_exclusive_lock_is_named_on_opening(filled, total, refusal):
    connection = sqlite3.connect(filled, isolation_level=None)
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute("BEGIN EXCLUSIVE")
    refusal(DatabaseLocked, filled, str(filled), "is locked", busy_timeout_s=0.1)
    connection.close()
    with Database.open(filled) as database:
        assert total(database) == 3


def test_four_processes_create_and_append_at_once_and_lose_nothing(database_url, make_record):
    made = [make_record(number % 7, seed=number) for number in range(80)]
    workers = []
    for index in range(4):
        worker = subprocess.Popen(
            [sys.executable, "-c", APPEND, database_url],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert worker.stdin is not None
        worker.stdin.write("\n".join(record.to_json() for record in made[index::4]))
        worker.stdin.close()
        worker.stdin = None
        workers.append(worker)
    for worker in workers:
        errors = worker.communicate()[1]
        assert worker.returncode == 0, errors
    with Database.open(database_url) as database, database.read() as connection:
        assert sorted(records.find(connection), key=lambda record: record.seed) == made


def test_a_reader_sees_one_state(database, make_record, total):
    with database.read() as reading:
        assert records.total(reading) == 0
        with database.write() as connection:
            records.add(connection, [make_record()])
        assert records.total(reading) == 0
    assert total(database) == 1


def test_a_live_log_is_read_by_another_process(path, make_record):
    """What is stored is durable for others before the writer closes."""
    script = (
        "import sys; from kernel_selector.db import Database, records\n"
        "with Database.open(sys.argv[1]).read() as connection: print(records.total(connection))"
    )
    with Database.open(path, create=True) as database:
        with database.write() as connection:
            records.add(connection, [make_record()])
        done = subprocess.run(
            [sys.executable, "-c", script, str(path)], cwd=ROOT, capture_output=True, text=True, check=True
        )
    assert done.stdout.strip() == "1"


def test_opening_a_file_again_gives_up_no_lock(path, make_record):
    """The other process must not take the log away, as the last one to leave does."""
    count = (
        "import sys; from kernel_selector.db import Database, records\n"
        "with Database.open(sys.argv[1]) as database, database.read() as connection:\n"
        "    print(records.total(connection))"
    )

    def seen_elsewhere():
        command = [sys.executable, "-c", count, str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return int(done.stdout)

    with Database.open(path, create=True) as first:
        with first.read() as connection:
            records.total(connection)
        with Database.open(path) as second:
            assert seen_elsewhere() == 0
            with second.write() as connection:
                records.add(connection, [make_record()])
        assert seen_elsewhere() == 1
