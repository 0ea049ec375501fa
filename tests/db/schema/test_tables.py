"""The tables follow the dataclasses, and the database holds what the tables say."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import get_type_hints

import pytest
from sqlalchemy import CheckConstraint, Table, UniqueConstraint, inspect, make_url, text

from kernel_selector.db import (
    Database,
    DatabaseError,
    StoredModel,
    audit,
    corrections,
    imported,
    records,
    submissions,
)
from kernel_selector.db.schema import measurements as tables
from kernel_selector.kernels.contract import Device, Environment, GateResult, Memory, Problem, Record, Timing

OWN = {"id", "content_hash"}
DERIVED = {"forward_undisturbed_ms", "forward_backward_undisturbed_ms"}  # from the samples
PREPARED = {"device_ms", "host_ms", "source"}  # which no record has yet
HELD = {"gate": GateResult, "memory": Memory, **dict.fromkeys(tables.TIMINGS, Timing)}
REFERENCES = {
    "problem": {"problem_id"},
    "implementation": {"implementation_id"},
    "implementation_version": {"implementation_id"},
    "device": {"device_id"},
    "environment": {"environment_id"},
}


def names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


def columns(table: type[tables.Base]) -> set[str]:
    return set(table.__table__.c.keys())


def test_each_field_of_a_record_has_its_columns_and_no_column_is_left_over():
    expected = set(OWN)
    for name in names(Record):
        if name in HELD:
            expected |= {f"{name}_{part}" for part in names(HELD[name])}
        else:
            expected |= REFERENCES.get(name, {name})
    assert columns(tables.Measurement) == expected | DERIVED | PREPARED | {"submission_id"}


def test_what_a_record_holds_is_what_this_test_believes():
    hints = get_type_hints(Record)
    held = {
        name
        for name, hint in hints.items()
        for kind in (hint, *getattr(hint, "__args__", ()))
        if is_dataclass(kind) and kind not in (Device, Environment, Problem)
    }
    assert held == set(HELD)


def test_the_other_tables_have_a_column_for_each_field():
    assert columns(tables.Environment) == names(Environment) | {"id", "fingerprint"}
    assert columns(tables.Device) == names(Device) | OWN | {"fingerprint", "key"}
    assert columns(tables.Model) == names(StoredModel) | {"id"}
    # `assumed` says what a user typed, and is no part of a problem
    assert columns(tables.Problem) == (names(Problem) - {"assumed"}) | {"id", "key", "dtype", "mode"}


def test_the_database_has_the_constraints_of_the_tables(database):
    """Alembic compares neither check constraints nor, on SQLite, the names of the others."""
    with database.read() as connection:
        found = inspect(connection)
        for table in tables.Base.metadata.sorted_tables:
            named = {
                *(item["name"] for item in found.get_check_constraints(table.name)),
                *(item["name"] for item in found.get_unique_constraints(table.name)),
                *(item["name"] for item in found.get_foreign_keys(table.name)),
                found.get_pk_constraint(table.name)["name"],
            }
            assert named == {str(constraint.name) for constraint in table.constraints}, table.name


def test_the_sqlite_checks_have_the_text_of_the_tables(sqlite_database):
    measurement = tables.Measurement.__table__
    assert isinstance(measurement, Table)
    written = {
        str(item.name): str(item.sqltext)
        for item in measurement.constraints
        if isinstance(item, CheckConstraint)
    }
    with sqlite_database.read() as connection:
        found = inspect(connection).get_check_constraints("measurement")
    assert {item["name"]: item["sqltext"] for item in found} == written


def unique_keys(table):
    constraints = tables.Base.metadata.tables[table].constraints
    return [key for key in constraints if isinstance(key, UniqueConstraint)]


@pytest.fixture(scope="module")
def everything(shared_database_url, make_record):
    """A database with a row in each append-only table, for all tests: each leaves it as it was."""
    with Database.open(shared_database_url, create=True) as database:
        fill(database, make_record)
        yield database


in_a_file = pytest.mark.parametrize("shared_database_url", ["sqlite"], indirect=True)
on_a_server = pytest.mark.parametrize(
    "shared_database_url", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True
)


def fill(database, make_record):
    now = datetime.now(UTC)
    journal = {"author": "me", "through": "command", "subject": "x"}
    with database.write() as connection:
        records.add(connection, [make_record()])
        batch = submissions.add(connection, author="worker-7", received_at=now)
        records.add(connection, [make_record()], submission=batch)
        submissions.quarantine(connection, submission=batch, lines=[(make_record(1).to_json(), "too fast")])
        retraction, release, undo = (
            audit.add(connection, action=action, **journal)
            for action in (audit.Action.RETRACT, audit.Action.RELEASE, audit.Action.UNDO)
        )
        aside = corrections.Aside(1, batch, make_record(1))
        corrections.release(connection, [aside], entry=release)
        sent = corrections.sendings(connection, submissions.Chosen(author="worker-7"))
        corrections.retract(connection, sent, entry=retraction, changed=1)
        corrections.undo(connection, undone=retraction, entry=undo, changed=1)
        row = imported.ImportedRow({"m": 1}, "a", "ok", 1.0, 2, "")
        imported.add(connection, operator="x", device="y", rows=[row], source="z", imported_at=now)
        for table in tables.APPEND_ONLY:
            assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() > 0, table


def contents(database):
    with database.read() as connection:
        return {
            table: connection.execute(text(f"SELECT * FROM {table} ORDER BY id")).all()
            for table in tables.APPEND_ONLY
        }


def test_these_are_all_tables_but_those_that_change():
    changing = {"tally", "model", "token", "job", "task"}
    assert {table.name for table in tables.Base.metadata.sorted_tables} - changing == set(tables.APPEND_ONLY)


@pytest.mark.parametrize("table", tables.APPEND_ONLY)
@pytest.mark.parametrize("statement", ["UPDATE {} SET id = id + 1", "DELETE FROM {}"])
def test_nothing_measured_can_be_changed_or_removed(everything, make_record, table, statement):
    before = contents(everything)
    with pytest.raises(DatabaseError, match=f"{table} is append-only"), everything.write() as connection:
        connection.execute(text(statement.format(table)))
    assert contents(everything) == before
    with everything.read() as connection:
        assert list(records.find(connection)) == [make_record(), make_record(1)]


@pytest.mark.parametrize(
    ("table", "number"),
    [
        *((table, "id") for table in tables.APPEND_ONLY),
        *((table, "id + 1000") for table in tables.APPEND_ONLY if unique_keys(table)),
    ],
)
def test_nothing_measured_can_be_replaced(everything, table, number):
    """By its id, or by what else two rows must not share; REPLACE asks no trigger of DELETE in SQLite."""
    of_table = tables.Base.metadata.tables[table]
    names = [f'"{column.name}"' for column in of_table.columns if column.name != "id"]
    rows = f"SELECT {number}, {', '.join(names)} FROM {table}"
    if everything.url.startswith("postgresql"):
        into = f"INSERT INTO {table} (id, {', '.join(names)}) {rows} ON CONFLICT "
        keyed = ", ".join(column.name for column in unique_keys(table)[0].columns) if number != "id" else "id"
        statement = f"{into} ({keyed}) DO UPDATE SET id = excluded.id"
    else:
        statement = f"INSERT OR REPLACE INTO {table} (id, {', '.join(names)}) {rows}"
    before = contents(everything)
    with pytest.raises(DatabaseError, match=f"{table} is append-only"), everything.write() as connection:
        connection.execute(text(statement))
    assert contents(everything) == before


@in_a_file
@pytest.mark.parametrize("table", tables.APPEND_ONLY)
@pytest.mark.parametrize(
    "statement", ["REPLACE INTO {0} SELECT * FROM {0}", "UPDATE OR REPLACE {0} SET id = 1", "DELETE FROM {0}"]
)
def test_another_client_of_the_file_cannot_either(everything, table, statement):
    before = contents(everything)
    with closing(sqlite3.connect(make_url(everything.url).database)) as raw:
        raw.execute("PRAGMA recursive_triggers = OFF")
        with pytest.raises(sqlite3.IntegrityError, match=f"{table} is append-only"):
            raw.execute(statement.format(table))
    assert contents(everything) == before


@on_a_server
@pytest.mark.parametrize("table", tables.APPEND_ONLY)
def test_nothing_measured_can_be_truncated(everything, table):
    with (
        pytest.raises(DatabaseError, match="append-only: TRUNCATE"),
        everything.write() as connection,
    ):
        connection.execute(text(f"TRUNCATE {table} CASCADE"))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("status", "'fine'"),
        ("status", "'crashed'"),
        ("gate_passed", "false"),
        ("gate_worst_error_ratio", "-1"),
        ("gate_worst_error_ratio", "2"),
        ("forward_p20_ms", "-1"),
        ("forward_p20_ms", "9"),
        ("forward_p80_ms", "0.5"),
        ("forward_p80_ms", "NULL"),
        ("forward_backward_samples", "0"),
        ("graph_forward_p50_ms", "1"),
        ("memory_peak_bytes", "NULL"),
        ("memory_held_bytes", "-1"),
        ("memory_workspace_bytes", "NULL"),
        ("problem_id", "99"),
        ("device_id", "NULL"),
    ],
)
def test_the_database_refuses_what_cannot_be_true(everything, column, value):
    others = ", ".join(columns(tables.Measurement) - {"id", "content_hash", column})
    statement = (
        f"INSERT INTO measurement (content_hash, {column}, {others}) "
        f"SELECT 'x', {value}, {others} FROM measurement WHERE id = 1"
    )
    with (
        pytest.raises(DatabaseError, match=r"refused a statement \(.*(constraint|CONSTRAINT)"),
        everything.write() as connection,
    ):
        connection.execute(text(statement))
    with everything.read() as connection:
        assert records.total(connection) == 2


def test_corrections_of_what_nobody_sent_are_refused(database, make_record):
    """As a program of before the revision 0010 makes them, which knows one author of a record."""
    retraction = "INSERT INTO retraction (measurement_id, audit_id) VALUES ({}, 1)"
    release = "INSERT INTO release (quarantined_id, measurement_id, audit_id) VALUES (1, {}, 1)"
    line = make_record(0).to_json()
    with database.write() as connection:
        when = make_record().measured_at
        first, second = (submissions.add(connection, author=name, received_at=when) for name in ("a", "b"))
        records.add(connection, [make_record(0)], submission=first)
        records.add(connection, [make_record(1), make_record(2)])
        records.add(connection, [make_record(2)], submission=second)
        submissions.quarantine(connection, submission=second, lines=[(line, "too fast")])
        audit.add(
            connection, author="me", through="command", action=audit.Action.RETRACT, subject="x", reason="y"
        )
    of_another = "INSERT INTO retraction (measurement_id, submission_id, audit_id) VALUES (1, 2, 1)"
    refused = {
        retraction.format(1): "retraction of a measurement as nobody sent it",
        of_another: "retraction of a measurement as nobody sent it",
        release.format(1): "release of a measurement without its author",
        release.format(2): "release of a measurement without its author",
    }
    for statement, words in refused.items():
        with (
            pytest.raises(DatabaseError, match=f"{words} refused: a program that is older .* Upgrade"),
            database.write() as connection,
        ):
            connection.execute(text(statement))
    with database.write() as connection:
        for statement in (retraction.format(2), retraction.format(3), release.format(3)):
            connection.execute(text(statement))
