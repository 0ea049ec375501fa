"""A snapshot names the content, not the database."""

from __future__ import annotations

import pytest

from kernel_selector.db import Database, records, snapshot


def fill(url: str, items) -> str:
    with Database.open(url, create=True) as database:
        for item in items:
            with database.write() as connection:
                records.add(connection, [item])
        with database.read() as connection:
            return snapshot(connection)


def test_equal_content_in_any_order(tmp_path, make_record):
    made = [make_record(number) for number in range(4)]
    first = fill(str(tmp_path / "a.sqlite"), made)
    assert fill(str(tmp_path / "b.sqlite"), reversed(made)) == first
    assert fill(str(tmp_path / "a.sqlite"), made) == first
    assert fill(str(tmp_path / "c.sqlite"), made[:3]) != first
    assert fill(str(tmp_path / "a.sqlite"), [make_record(9)]) != first


@pytest.mark.postgres
@pytest.mark.parametrize("count", [0, 1, 40])
def test_equal_content_in_both_databases(tmp_path, postgres_url, make_record, count):
    made = [make_record(number) for number in range(count)]
    assert fill(postgres_url, made) == fill(str(tmp_path / "a.sqlite"), made)


def test_the_stamp_changes_with_each_change(sqlite_database, make_record):
    stamps = [sqlite_database.stamp()]
    for number in range(3):
        with sqlite_database.write() as connection:
            records.add(connection, [make_record(number)])
        stamps.append(sqlite_database.stamp())
        with sqlite_database.read() as connection:
            records.total(connection)
        assert sqlite_database.stamp() == stamps[-1]
    assert len(set(stamps)) == 4


@pytest.mark.postgres
def test_postgresql_has_no_cheap_stamp(postgres_url):
    with Database.open(postgres_url, create=True) as database:
        assert database.stamp() is None
