"""Definitions of a database that were lost or changed are found, and old databases have none of these."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from kernel_selector.db import Database, DatabaseCorrupt, integrity
from kernel_selector.db.engine.backup import restore
from tests.db.schema.test_migrations import ASSETS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "measurements.sqlite"
    Database.open(path, create=True).close()
    return path


def faults_of(path: Path) -> list[str]:
    with Database.open(path) as database, database.read() as connection:
        return list(integrity.faults(connection))


def test_a_new_database_has_no_fault(database):
    with database.read() as connection:
        assert list(integrity.faults(connection)) == []


@pytest.mark.parametrize("asset", ASSETS, ids=lambda asset: asset.stem)
def test_one_that_was_upgraded_has_no_fault(tmp_path, asset):
    path = Path(shutil.copy(asset, tmp_path))
    Database.upgrade(path)
    assert faults_of(path) == []


def test_dropped_triggers_are_found_and_no_backup(path):
    copy = Path(shutil.copy(path, path.with_name("copy.sqlite")))
    with closing(sqlite3.connect(copy)) as raw, raw:
        names = [
            name
            for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        ]
        for name in names:
            raw.execute(f"DROP TRIGGER {name}")
    assert len(names) > 20
    assert faults_of(copy) == [f"the trigger {name} is missing, or not in force" for name in sorted(names)]
    with pytest.raises(DatabaseCorrupt, match=r"nothing was changed: the trigger .* is missing"):
        restore(copy, path, author="ops")


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        (
            "UPDATE sqlite_master SET sql = replace(sql, 'BEFORE UPDATE', 'AFTER  UPDATE') "
            "WHERE name = 'audit_no_update'",
            "the trigger audit_no_update is not as it was made: its definition is another",
        ),
        (
            "UPDATE sqlite_master SET sql = replace(sql, 'attempts >= 0', 'attempts >= 1') "
            "WHERE name = 'task'",
            "the table task is not as it was made: its definition is another",
        ),
        ("DROP INDEX ix_model_operator", "the index ix_model_operator is missing, or not in force"),
        (
            "CREATE TRIGGER mine AFTER INSERT ON model BEGIN DELETE FROM model; END",
            "the trigger mine is none of ours, and may change or refuse what is stored",
        ),
        ("CREATE INDEX mine ON model (operator)", None),
        ("CREATE TABLE mine (a INTEGER PRIMARY KEY AUTOINCREMENT)", None),
        ("ANALYZE", None),
    ],
)
def test_a_definition_that_changed_is_found(path, statement, fault):
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA writable_schema = ON")
        assert raw.execute(statement).rowcount != 0
        raw.commit()
    assert faults_of(path) == ([] if fault is None else [fault])


@pytest.mark.postgres
def test_triggers_of_postgresql_that_are_not_in_force_are_found(postgres_url):
    with Database.open(postgres_url, create=True) as database:
        with database.write() as connection:
            connection.execute(text("DROP TRIGGER audit_no_truncate ON audit"))
            connection.execute(text("ALTER TABLE measurement DISABLE TRIGGER measurement_no_update"))
        with database.read() as connection:
            assert list(integrity.faults(connection)) == [
                "the trigger audit_no_truncate is missing, or not in force",
                "the trigger measurement_no_update is missing, or not in force",
            ]
