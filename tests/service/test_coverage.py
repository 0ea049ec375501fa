"""What the database covers: counted right, on both databases, and not more often than need be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from kernel_selector.db import Database, DatabaseError, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, Status
from kernel_selector.service import cached
from kernel_selector.service.pages import coverage
from selector import Selector
from tests.selector import replay

PROBLEMS = list(replay.problems(hidden=(64, 128), batch=(8,), seq=(10,), layers=(1,), mode=("training",)))
H200 = replace(replay.HERE, name="NVIDIA H200", kind="cuda", host="node-1")
FOREIGN = Problem("from_elsewhere", (("size", 3), ("mode", "training")))


def found_records():
    """Two problems here, one of them on a GPU, an earlier version, a failure, and a foreign operator."""
    yield from replay.sweep(PROBLEMS)
    yield replay.record(PROBLEMS[0], "torch_lstm", device=H200)
    old = replay.record(PROBLEMS[0], "torch_lstm")
    yield replace(old, implementation_version="old", measured_at=old.measured_at + timedelta(days=30))
    yield replace(
        replay.failed(PROBLEMS[1], "fused", Status.CRASHED),
        measured_at=replay.EPOCH,
    )
    yield replace(old, problem=FOREIGN)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_database")
        return
    with Database.open(request.getfixturevalue("postgres_url"), create=True) as opened:
        yield opened


def test_what_is_counted(database: Database) -> None:
    with database.write() as connection:
        records.add(connection, found_records())
    with database.read() as connection:
        found = {(row.operator, row.device_key): row for row in coverage.coverage(connection)}
        assert sum(row.records for row in found.values()) == records.total(connection)
    here, gpu = found["lstm", replay.HERE.key], found["lstm", "nvidia-h200"]
    foreign = found["from_elsewhere", replay.HERE.key]
    candidates = len(replay.ON_CPU)
    assert here.device == "Replay CPU 8"
    assert (here.problems, here.records) == (2, 2 * candidates + 2)
    assert (here.current, here.failed) == (2 * candidates, 1)
    assert (here.measured, here.implementations) == (candidates, len(registry.implementations("lstm")))
    assert here.last_measured_at >= replay.EPOCH + timedelta(days=30)
    assert here.last_measured_at.tzinfo is not None
    assert (gpu.device, gpu.problems, gpu.current, gpu.measured) == ("NVIDIA H200", 1, 1, 1)
    assert (foreign.records, foreign.current, foreign.implementations) == (1, 0, 0)
    assert here.to_dict()["last_measured_at"] == here.last_measured_at.isoformat()


def test_nothing_is_measured(sqlite_database: Database) -> None:
    with sqlite_database.read() as connection:
        assert coverage.coverage(connection) == []


def test_it_is_counted_again_when_the_database_changed(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []

    def counting(connection: object) -> list[coverage.Coverage]:
        counted.append(connection)
        return real(connection)

    real = coverage.coverage
    monkeypatch.setattr(coverage, "coverage", counting)
    monkeypatch.setattr("selector.selection.selector.CHECK_S", 0.0)
    monkeypatch.setattr("selector.selection.selector.BACK_OFF", 0)
    selector = Selector(sqlite_database)
    cache = coverage.CoverageCache(selector)
    assert (cache.rows(), cache.rows(), len(counted)) == ([], [], 1)
    monkeypatch.setattr(cached, "BACK_OFF", 0)
    cache._cached._due = 0.0
    with sqlite_database.write() as connection:
        records.add(connection, replay.sweep(PROBLEMS[:1]))
    assert [row.problems for row in cache.rows()] == [1]
    assert len(counted) == 2
    monkeypatch.setattr(cached, "BACK_OFF", 1e9)
    cache._cached._due = 0.0
    for problem, expected in ((PROBLEMS[1], 2), (PROBLEMS[0], 2)):  # the second change waits
        with sqlite_database.write() as connection:
            records.add(connection, [replace(replay.record(problem, "fused"), seed=expected)])
        assert [row.problems for row in cache.rows()] == [expected]
    assert len(counted) == 3


def test_counts_of_before_go_on(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> list[coverage.Coverage]:
        raise DatabaseError("gone")

    monkeypatch.setattr("selector.selection.selector.CHECK_S", 0.0)
    monkeypatch.setattr("selector.selection.selector.BACK_OFF", 0)
    selector = Selector(sqlite_database)
    cache = coverage.CoverageCache(selector)
    real = coverage.coverage
    monkeypatch.setattr(coverage, "coverage", fail)
    for _ in range(2):  # a failure is said again, not taken for an empty database
        with pytest.raises(DatabaseError):
            cache.rows()
    monkeypatch.setattr(coverage, "coverage", real)
    assert cache.rows() == []
    monkeypatch.setattr(coverage, "coverage", fail)
    cache._cached._due = 0.0
    with sqlite_database.write() as connection:
        records.add(connection, replay.sweep(PROBLEMS[:1]))
    assert cache.rows() == []
