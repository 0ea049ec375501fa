"""Opening: by path, by URL, by environment; and each thing that may be wrong with what is there."""

from __future__ import annotations

import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from kernel_selector.db import (
    Database,
    DatabaseCorrupt,
    DatabaseFull,
    DatabaseMissing,
    DatabaseRevision,
    DatabaseUnreachable,
    default_path,
    records,
)
from kernel_selector.db.engine import migrations, sqlite

ROOT = Path(__file__).parents[3]


def test_by_path_by_url_and_by_environment(filled, monkeypatch, total):
    monkeypatch.chdir(filled.parent)
    for url in (filled, str(filled), filled.name, f"sqlite:///{filled}", f"sqlite:///{filled.name}"):
        with Database.open(url) as database:
            assert total(database) == 3
            assert database.location == str(filled)
            assert database.url == f"sqlite:///{filled}"
    monkeypatch.setenv("SELECTOR_DATABASE_URL", str(filled))
    with Database.open() as database:
        assert total(database) == 3


def test_a_full_disk_is_said_and_nothing_is_stored(filled, make_record, total):
    with Database.open(filled) as database:

        def fill():
            with database.write() as connection:
                connection.exec_driver_sql("PRAGMA max_page_count = 1")  # or as many as there are
                records.add(connection, [make_record(number) for number in range(100, 600)])

        with pytest.raises(DatabaseFull, match=r"has no room left on its disk .* nothing was lost\.$"):
            fill()
        assert total(database) == 3


def test_the_default_is_in_the_users_data_directory(tmp_path, monkeypatch, refusal):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("SELECTOR_DATABASE_URL")
    assert default_path() == tmp_path / "data" / "kernel-selector" / "measurements.sqlite"
    refusal(DatabaseMissing, None, str(default_path()), "selector quickstart")
    with Database.open(create=True) as database:
        assert database.location == str(default_path())


def test_names_with_special_characters(tmp_path, total):
    path = tmp_path / "with space" / "100%?#ü&mode=ro.sqlite"
    with Database.open(path, create=True) as database:
        assert total(database) == 0
        assert path.exists()
    with Database.open(database.url) as again:
        assert again.location == str(path)


def test_missing_file_and_missing_folder(path, refusal):
    refusal(DatabaseMissing, path, str(path), "selector quickstart")
    refusal(DatabaseMissing, path.parent / "none" / "a.sqlite", "none does not exist", "create=True")
    refusal(DatabaseMissing, path, f"`selector database upgrade --database {path}`", "in Python")
    assert list(path.parent.iterdir()) == []


def test_an_empty_file_is_missing_until_it_is_created(path, total, refusal):
    path.touch()
    refusal(DatabaseMissing, path, str(path), "is empty")
    with Database.open(path, create=True) as database:
        assert total(database) == 0


def test_a_file_removed_while_open(filled, total):
    with Database.open(filled) as database:
        filled.unlink()
        with pytest.raises(DatabaseMissing, match=r"measurements\.sqlite does not exist"):
            total(database)
        with pytest.raises(DatabaseMissing), database.write():
            pass
    assert not filled.exists()


def test_a_file_replaced_while_open(filled, make_record, total):
    other = filled.with_name("other.sqlite")
    with Database.open(other, create=True) as database, database.write() as connection:
        records.add(connection, [make_record()])
    with Database.open(filled) as database:
        assert total(database) == 3
        other.replace(filled)
        assert total(database) == 1


def test_what_went_into_a_log_that_was_removed_is_not_acknowledged(filled, make_record):
    def write_and_remove_the_log(database):
        with database.write() as connection:
            filled.with_name(f"{filled.name}-wal").unlink()
            records.add(connection, [make_record(7)])

    words = "was removed or replaced while it was written to"
    with Database.open(filled) as database, pytest.raises(DatabaseUnreachable, match=words):
        write_and_remove_the_log(database)


def test_a_log_that_was_removed_between_writes_costs_none_of_the_later_ones(filled, make_record, total):
    with Database.open(filled) as database:
        with database.write() as connection:
            records.add(connection, [make_record(7)])
        filled.with_name(f"{filled.name}-wal").unlink()
        with database.write() as connection:
            records.add(connection, [make_record(8)])
        stored = total(database)
    with Database.open(filled) as again, again.read() as connection:
        assert make_record(8) in list(records.find(connection))
        assert records.total(connection) == stored


@pytest.mark.parametrize("create", [False, True])
def test_garbage_is_refused_and_left_alone(path, create, refusal):
    path.write_bytes(b"certainly not a database" * 1000)
    refusal(DatabaseCorrupt, path, str(path), "certainly not a ", "Nothing was changed", create=create)
    assert path.read_bytes() == b"certainly not a database" * 1000
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b'{"operator": "lstm"}\n', r"""'{"operator": "ls'"""),
        (b'{"a": 1}\n{"a": 2}\n', r"""'{"a": 1}\n{"a": 2'"""),
        (b"ms,b\r\n1,2\r\n", r"'ms,b\r\n1,2\r\n'"),
        ("größe,ms\n".encode(), "the bytes 67 72"),
        (b"PAR1" + bytes(90), "the bytes 50 41 52 31"),
        (b"\x1f\x8b\x08\x00" + bytes(90), "the bytes 1f 8b"),
    ],
)
def test_a_file_of_measurements_is_said_to_be_imported(path, content, shown, refusal):
    path.write_bytes(content)
    refusal(DatabaseCorrupt, path, shown, "Nothing was changed", f"`selector import {path}`")


def test_a_file_of_bytes_is_not_taken_for_measurements(path):
    path.write_bytes(b"\x00\xff\x07" * 1000)
    with pytest.raises(DatabaseCorrupt, match="Restore a copy, or move the file away") as error:
        Database.open(path)
    assert "import" not in str(error.value)


@pytest.mark.parametrize("length", [1, 50, 99, 100, 4096, 20000, -1])
@pytest.mark.parametrize("create", [False, True])
def test_a_truncated_file_is_refused_and_left_alone(filled, length, create, refusal):
    kept = filled.read_bytes()[:length]
    filled.write_bytes(kept)
    refusal(DatabaseCorrupt, filled, str(filled), "Restore a copy", create=create)
    assert filled.read_bytes() == kept


def test_damage_inside_is_found_when_it_is_read(filled, total):
    content = bytearray(filled.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    filled.write_bytes(content)
    with pytest.raises(DatabaseCorrupt, match="is damaged"), Database.open(filled) as database:
        total(database)


@pytest.mark.parametrize("writable", [True, False])
def test_a_schema_that_is_no_text_is_damage(filled, writable, monkeypatch):
    """SQLite quotes what is damaged in a message that Python cannot read then."""
    content = filled.read_bytes()
    filled.write_bytes(content.replace(b"(id), \n\tCONSTRAINT", b"(id), \n\tCO\xceSTRAINT"))
    monkeypatch.setattr(sqlite, "is_writable", lambda _: writable)
    with pytest.raises(DatabaseCorrupt, match="is damaged"):
        Database.open(filled)


def test_a_folder_is_not_a_database(tmp_path, refusal):
    refusal(DatabaseCorrupt, tmp_path, str(tmp_path), "is a folder")
    refusal(DatabaseCorrupt, tmp_path, str(tmp_path), "is a folder", create=True)


def test_a_pipe_is_not_a_database(tmp_path, refusal):
    """Its opening waited for somebody who writes."""
    os.mkfifo(tmp_path / "pipe")
    refusal(DatabaseCorrupt, tmp_path / "pipe", str(tmp_path / "pipe"), "is no regular file")


def test_a_database_of_something_else(path, refusal):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE device (name TEXT)")
    connection.close()
    refusal(DatabaseRevision, path, str(path), "device", "another file")
    refusal(DatabaseRevision, path, str(path), "device", create=True)


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE customers (name TEXT)", "INSERT INTO customers VALUES ('Ada')"],
        ["CREATE TABLE alembic_version (version_num TEXT)", "CREATE TABLE customers (name TEXT)"],
        [
            "CREATE TABLE alembic_version (version_num TEXT)",
            "INSERT INTO alembic_version VALUES ('0003')",
            "CREATE TABLE customers (name TEXT)",
        ],
        [
            "CREATE TABLE alembic_version (version_num TEXT)",
            "INSERT INTO alembic_version VALUES ('0003')",
        ],
    ],
    ids=["no revision", "an empty revision", "a revision named as ours", "only a revision named as ours"],
)
def test_another_programs_file_is_refused_and_left_alone(path, statements, refusal):
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    before = path.read_bytes()
    for create in (False, True):
        refusal(DatabaseRevision, path, str(path), "did not make", "another file", create=create)
    with pytest.raises(DatabaseRevision, match="another file"):
        Database.upgrade(path, create=True)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("create", [False, True])
def test_our_tables_without_their_revision(database_url, create, refusal):
    with Database.open(database_url, create=True) as database, database.write() as connection:
        connection.execute(text("DELETE FROM alembic_version"))
    refusal(DatabaseRevision, database_url, database.location, "no revision of ours", create=create)
    with pytest.raises(DatabaseRevision, match="no revision of ours"):
        Database.upgrade(database_url, create=True)


def test_a_copy_in_another_journal_mode_gets_ours_again(filled, total):
    copy = filled.with_name("copy.sqlite")
    with sqlite3.connect(filled) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))
    connection.close()
    assert copy.read_bytes()[18] == 1  # no write-ahead log
    with Database.open(copy) as database:
        assert total(database) == 3
    assert copy.read_bytes()[18] == 2


@pytest.mark.parametrize("create", [False, True])
def test_a_newer_or_unknown_revision(database_url, create, refusal):
    with Database.open(database_url, create=True) as database, database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    refusal(
        DatabaseRevision, database_url, database.location, "9999", "Upgrade kernel-selector", create=create
    )
    with pytest.raises(DatabaseRevision, match="9999"):
        Database.upgrade(database_url)


def test_an_older_revision_is_upgraded_on_demand(filled, monkeypatch, refusal):
    older = migrations.HEAD
    monkeypatch.setattr(migrations, "HEAD", "9998")
    refusal(DatabaseRevision, filled, str(filled), f"older revision {older}", "selector database upgrade")


def test_several_revisions(filled, refusal):
    with Database.open(filled) as database, database.write() as connection:
        connection.execute(text("INSERT INTO alembic_version VALUES ('9999')"))
    refusal(DatabaseRevision, filled, "several revisions")


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
def test_what_is_no_place_for_a_database(url, named, refusal):
    refusal(DatabaseUnreachable, url, named, "Give a file path")
    with pytest.raises(DatabaseUnreachable) as caught:
        Database.open(url, create=True)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("create", [False, True])
def test_an_unreachable_server(create, refusal):
    url = "postgresql://me:s3cret@127.0.0.1:1/none?sslpassword=s3cret"
    refusal(DatabaseUnreachable, url, "postgresql://me:***@127.0.0.1:1/none", "server runs", create=create)
    with pytest.raises(DatabaseUnreachable) as caught:
        Database.open(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.postgres
def test_a_wrong_database_and_an_empty_schema(postgres_server, postgres_url, refusal):
    wrong = postgres_server.rpartition("/")[0] + "/no_such_database"
    refusal(DatabaseUnreachable, wrong, "no_such_database", "does not exist")
    refusal(DatabaseMissing, postgres_url, "is empty", "create=True")


def become(connection, revision):
    connection.execute(text("UPDATE alembic_version SET version_num = :found"), {"found": revision})


@pytest.mark.parametrize(
    ("revision", "words"), [("0010", "selector database upgrade"), ("9999", "Upgrade kernel-selector")]
)
@pytest.mark.parametrize("in_turn", [True, False])
def test_a_program_of_another_revision_does_not_write(
    database, database_url, make_record, revision, words, in_turn
):
    """Which was opened before the database became of that revision, and wrote already."""
    with database.write(in_turn=in_turn) as connection:
        records.add(connection, [make_record()])
    with Database.migrating(database_url) as connection:
        become(connection, revision)
    with (
        pytest.raises(DatabaseRevision, match=f"{revision}.*{migrations.HEAD}.*{words}"),
        database.write(in_turn=in_turn) as connection,
    ):
        records.add(connection, [make_record(1)])
    with Database.migrating(database_url) as connection:
        become(connection, migrations.HEAD)
    with database.write(in_turn=in_turn) as connection:
        assert records.total(connection) == 1


def test_a_writer_that_waited_for_an_upgrade_does_not_write(database, database_url, make_record):
    def write():
        with database.write() as connection:
            records.add(connection, [make_record()])

    with ThreadPoolExecutor(1) as pool:
        with Database.migrating(database_url) as connection:
            become(connection, "9999")
            waiting = pool.submit(write)
            time.sleep(0.3)  # it waits for its turn
            assert not waiting.done()
        with pytest.raises(DatabaseRevision, match="9999"):
            waiting.result(timeout=20)


def in_the_file_alone(path):
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as alone:
        return alone.execute("SELECT count(*) FROM measurement").fetchone()[0]


def test_what_was_written_is_in_the_file_itself_once_it_is_closed(filled, make_record):
    with Database.open(filled) as other:  # which keeps SQLite from doing so
        with other.read() as connection:
            records.total(connection)
        with Database.open(filled) as database, database.write() as connection:
            records.add(connection, [make_record(7)])
        assert in_the_file_alone(filled) == 4
        assert log_bytes(filled) == 0


def log_bytes(path):
    return path.with_name(f"{path.name}-wal").stat().st_size


def test_a_reader_of_the_log_keeps_nobody_from_closing_and_loses_nothing(filled, make_record, total):
    with Database.open(filled) as other, other.read() as connection:
        records.total(connection)
        with Database.open(filled) as database, database.write() as writing:
            records.add(writing, [make_record(7)])
            started = time.monotonic()
        assert time.monotonic() - started < 5
        assert log_bytes(filled) > 0
        assert records.total(connection) == 3
    with Database.open(filled) as again:
        assert total(again) == 4
