"""Opening: by path, by URL, by environment; and each thing that may be wrong with what is there."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from kernel_selector.db import (
    Database,
    DatabaseCorrupt,
    DatabaseError,
    DatabaseLocked,
    DatabaseMissing,
    DatabaseReadOnly,
    DatabaseRevision,
    DatabaseUnreachable,
    default_path,
    migrations,
    records,
    snapshot,
)
from kernel_selector.kernels.contract import SelectorError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "measurements.sqlite"


@pytest.fixture
def filled(path: Path, make_record) -> Path:
    """A closed database of three records: one file, no log beside it."""
    with Database.open(path, create=True) as database, database.write() as connection:
        records.add(connection, [make_record(number) for number in range(3)])
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    return path


def total(database: Database) -> int:
    with database.read() as connection:
        return records.total(connection)


def refusal(kind: type[DatabaseError], url: object, *words: str, **options: object) -> None:
    """Opening raises exactly this error, and its message has the words."""
    with pytest.raises(SelectorError) as caught:
        Database.open(url, **options)
    assert type(caught.value) is kind
    for word in words:
        assert word in str(caught.value)


def test_by_path_by_url_and_by_environment(filled, monkeypatch):
    monkeypatch.chdir(filled.parent)
    for url in (filled, str(filled), filled.name, f"sqlite:///{filled}", f"sqlite:///{filled.name}"):
        with Database.open(url) as database:
            assert total(database) == 3
            assert database.location == str(filled)
            assert database.url == f"sqlite:///{filled}"
    monkeypatch.setenv("SELECTOR_DATABASE_URL", str(filled))
    with Database.open() as database:
        assert total(database) == 3


def test_the_default_is_in_the_users_data_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("SELECTOR_DATABASE_URL")
    assert default_path() == tmp_path / "data" / "kernel-selector" / "measurements.sqlite"
    refusal(DatabaseMissing, None, str(default_path()), "selector quickstart")
    with Database.open(create=True) as database:
        assert database.location == str(default_path())


def test_names_with_special_characters(tmp_path):
    path = tmp_path / "with space" / "100%?#ü&mode=ro.sqlite"
    with Database.open(path, create=True) as database:
        assert total(database) == 0
        assert path.exists()
    with Database.open(database.url) as again:
        assert again.location == str(path)


def test_missing_file_and_missing_folder(path):
    refusal(DatabaseMissing, path, str(path), "selector quickstart")
    refusal(DatabaseMissing, path.parent / "none" / "a.sqlite", "none does not exist", "create=True")
    assert list(path.parent.iterdir()) == []


def test_an_empty_file_is_missing_until_it_is_created(path):
    path.touch()
    refusal(DatabaseMissing, path, str(path), "is empty")
    with Database.open(path, create=True) as database:
        assert total(database) == 0


def test_a_file_removed_while_open(filled):
    with Database.open(filled) as database:
        filled.unlink()
        with pytest.raises(DatabaseMissing, match=r"measurements\.sqlite does not exist"):
            total(database)
        with pytest.raises(DatabaseMissing), database.write():
            pass
    assert not filled.exists()


def test_a_file_replaced_while_open(filled, make_record):
    other = filled.with_name("other.sqlite")
    with Database.open(other, create=True) as database, database.write() as connection:
        records.add(connection, [make_record()])
    with Database.open(filled) as database:
        assert total(database) == 3
        other.replace(filled)
        assert total(database) == 1


@pytest.mark.parametrize("create", [False, True])
def test_garbage_is_refused_and_left_alone(path, create):
    path.write_bytes(b"certainly not a database" * 1000)
    refusal(DatabaseCorrupt, path, str(path), "certainly not a ", "Nothing was changed", create=create)
    assert path.read_bytes() == b"certainly not a database" * 1000
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("length", [1, 50, 99, 100, 4096, 20000, -1])
@pytest.mark.parametrize("create", [False, True])
def test_a_truncated_file_is_refused_and_left_alone(filled, length, create):
    kept = filled.read_bytes()[:length]
    filled.write_bytes(kept)
    refusal(DatabaseCorrupt, filled, str(filled), "Restore a copy", create=create)
    assert filled.read_bytes() == kept


def test_damage_inside_is_found_when_it_is_read(filled):
    content = bytearray(filled.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    filled.write_bytes(content)
    with pytest.raises(DatabaseCorrupt, match="is damaged"), Database.open(filled) as database:
        total(database)


def test_a_folder_is_not_a_database(tmp_path):
    refusal(DatabaseCorrupt, tmp_path, str(tmp_path), "is a folder")
    refusal(DatabaseCorrupt, tmp_path, str(tmp_path), "is a folder", create=True)


def test_a_database_of_something_else(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE device (name TEXT)")
    connection.close()
    refusal(DatabaseRevision, path, str(path), "device", "another file")
    refusal(DatabaseRevision, path, str(path), "device", create=True)


@pytest.mark.parametrize("create", [False, True])
def test_a_newer_or_unknown_revision(database_url, create):
    with Database.open(database_url, create=True) as database, database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    refusal(
        DatabaseRevision, database_url, database.location, "9999", "Upgrade kernel-selector", create=create
    )
    with pytest.raises(DatabaseRevision, match="9999"):
        Database.upgrade(database_url)


def test_an_older_revision_is_upgraded_on_demand(filled, monkeypatch):
    older = migrations.HEAD
    monkeypatch.setattr(migrations, "HEAD", "0002")
    refusal(DatabaseRevision, filled, str(filled), f"older revision {older}", "selector database upgrade")


def test_several_revisions(filled):
    with Database.open(filled) as database, database.write() as connection:
        connection.execute(text("INSERT INTO alembic_version VALUES ('9999')"))
    refusal(DatabaseRevision, filled, "several revisions")


def test_a_lock_is_waited_for_and_then_named(filled, make_record):
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


def test_an_exclusive_lock_is_named_on_opening(filled):
    connection = sqlite3.connect(filled, isolation_level=None)
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute("BEGIN EXCLUSIVE")
    refusal(DatabaseLocked, filled, str(filled), "is locked", busy_timeout_s=0.1)
    connection.close()
    with Database.open(filled) as database:
        assert total(database) == 3


@pytest.fixture
def public(filled: Path) -> Iterator[Path]:
    """The filled database in a folder that every account may enter, while we are not root.

    Root may write what is read-only, so the test takes an ordinary account for its duration.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / filled.name
        path.write_bytes(filled.read_bytes())
        path.chmod(0o444)
        os.chmod(folder, 0o555)
        Database.open(filled).close()  # imports all that is needed
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        yield path
        if root:
            os.seteuid(0)
        os.chmod(folder, 0o755)


def test_a_read_only_file_is_read_and_not_written(public):
    for create in (False, True):
        with Database.open(public, create=create) as database:
            assert total(database) == 3
            with (
                pytest.raises(DatabaseReadOnly, match=f"{public} may only be read"),
                database.write(),
            ):
                pass
    assert [file.name for file in public.parent.iterdir()] == [public.name]


def test_a_new_file_in_a_read_only_folder(public):
    refusal(DatabaseReadOnly, public.parent / "b.sqlite", "b.sqlite", "SELECTOR_DATABASE_URL", create=True)
    refusal(DatabaseReadOnly, public.parent / "c" / "b.sqlite", "SELECTOR_DATABASE_URL", create=True)
    refusal(DatabaseMissing, public.parent / "b.sqlite", "b.sqlite")


def test_a_file_that_may_not_be_read(public):
    if os.getuid() != 0:
        public.chmod(0)
    else:
        os.seteuid(0)
        public.chmod(0)
        os.seteuid(65534)
    refusal(DatabaseUnreachable, public, str(public), "cannot be read: Permission denied")


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("mysql://a:secret@b/c", "'mysql'"),
        ("postgresql+asyncpg://a:secret@b/c", "asyncpg"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        (":memory:", "':memory:'"),
        ("sqlite:///a.sqlite?mode=ro", "mode"),
        ("://", "'://'"),
        ("postgresql://a:secret@b:port/c", "'postgres'"),
    ],
)
def test_what_is_no_place_for_a_database(url, named):
    refusal(DatabaseUnreachable, url, named, "Give a file path")
    with pytest.raises(DatabaseUnreachable) as caught:
        Database.open(url, create=True)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("create", [False, True])
def test_an_unreachable_server(create):
    url = "postgresql://me:s3cret@127.0.0.1:1/none?sslpassword=s3cret"
    refusal(DatabaseUnreachable, url, "postgresql://me:***@127.0.0.1:1/none", "server runs", create=create)
    with pytest.raises(DatabaseUnreachable) as caught:
        Database.open(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.postgres
def test_a_wrong_database_and_an_empty_schema(postgres_server, postgres_url):
    wrong = postgres_server.rpartition("/")[0] + "/no_such_database"
    refusal(DatabaseUnreachable, wrong, "no_such_database", "does not exist")
    refusal(DatabaseMissing, postgres_url, "is empty", "create=True")


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
        assert snapshot(connection)


def test_a_reader_sees_one_state(database, make_record):
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
