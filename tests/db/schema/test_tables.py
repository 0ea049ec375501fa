"""The tables follow the dataclasses, and the database holds what the tables say."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import get_type_hints

import pytest
from sqlalchemy import CheckConstraint, Table, inspect, text

from kernel_selector.db import Database, DatabaseError, StoredModel, audit, records, submissions
from kernel_selector.db.schema import measurements as tables
from kernel_selector.kernels.contract import Device, Environment, GateResult, Memory, Problem, Record, Timing

OWN = {"id", "content_hash"}
DERIVED = {"forward_undisturbed_ms", "forward_backward_undisturbed_ms"}  # from the samples
PREPARED = {"regime", "device_ms", "host_ms", "source"}  # which no record has yet
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


@pytest.mark.parametrize("table", tables.APPEND_ONLY)
@pytest.mark.parametrize("statement", ["UPDATE {} SET id = id + 1", "DELETE FROM {}"])
def test_nothing_measured_can_be_changed_or_removed(database, make_record, table, statement):
    with database.write() as connection:
        records.add(connection, [make_record()])
        number = submissions.add(connection, author="worker-7", received_at=datetime.now(UTC))
        submissions.quarantine(connection, submission=number, lines=[("{}", "too fast")])
        audit.add(
            connection, author="me", through="command", action=audit.Action.TOKEN_REVOKE, subject="worker-7"
        )
    with pytest.raises(DatabaseError, match=f"{table} is append-only"), database.write() as connection:
        connection.execute(text(statement.format(table)))
    with database.read() as connection:
        assert list(records.find(connection)) == [make_record()]


@pytest.mark.postgres
def test_nothing_measured_can_be_truncated(postgres_url):
    database = Database.open(postgres_url, create=True)
    with (
        database,
        pytest.raises(DatabaseError, match="append-only: TRUNCATE"),
        database.write() as connection,
    ):
        connection.execute(text("TRUNCATE measurement CASCADE"))


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
def test_the_database_refuses_what_cannot_be_true(database, make_record, column, value):
    with database.write() as connection:
        records.add(connection, [make_record()])
    others = ", ".join(columns(tables.Measurement) - {"id", "content_hash", column})
    statement = (
        f"INSERT INTO measurement (content_hash, {column}, {others}) "
        f"SELECT 'x', {value}, {others} FROM measurement"
    )
    with (
        pytest.raises(DatabaseError, match=r"refused a statement \(.*(constraint|CONSTRAINT)"),
        database.write() as connection,
    ):
        connection.execute(text(statement))
    with database.read() as connection:
        assert records.total(connection) == 1
