"""Databases of both kinds, and records to put into them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kernel_selector.db import Database, DatabaseError, records
from kernel_selector.kernels.contract import (
    Device,
    Environment,
    GateResult,
    Memory,
    Problem,
    Record,
    SelectorError,
    Status,
    Timing,
)

ENVIRONMENT = Environment(
    python="3.12.1",
    torch="2.13.0",
    triton=None,
    cuda=None,
    cudnn=None,
    driver=None,
    threads=2,
    system="Linux x86_64",
)
DEVICE = Device(
    name="NVIDIA H200",
    kind="cuda",
    vendor="NVIDIA",
    host="a processor, 16 cores",
    compute_capability=(9, 0),
    multiprocessors=132,
    memory_bytes=150_754_820_096,
    copy_bytes_per_s=4.1e12,
    matmul_flops_per_s={"float32": 5.1e13, "bfloat16": 7.9e14},
    launch_us=2.7,
)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a database, where there is none yet."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_url")
    return str(tmp_path / "measurements.sqlite")


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def shared_database_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same for the tests of one file."""
    if request.param == "postgresql":
        return request.getfixturevalue("shared_postgres_url")
    return str(tmp_path_factory.mktemp("shared") / "measurements.sqlite")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An empty database of the current revision."""
    with Database.open(database_url, create=True) as database:
        yield database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where there is no file yet."""
    return tmp_path / "measurements.sqlite"


@pytest.fixture
def filled(path: Path, make_record: Callable[..., Record]) -> Path:
    """A closed database of three records: one file, no log beside it."""
    with Database.open(path, create=True) as database, database.write() as connection:
        records.add(connection, [make_record(number) for number in range(3)])
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    return path


@pytest.fixture(scope="session")
def total() -> Callable[[Database], int]:
    """How many records a database has."""

    def count(database: Database) -> int:
        with database.read() as connection:
            return records.total(connection)

    return count


@pytest.fixture(scope="session")
def refusal() -> Callable[..., None]:
    """Asserts that opening raises exactly this error, and that its message has the words."""

    def check(kind: type[DatabaseError], url: object, *words: str, **options: Any) -> None:
        with pytest.raises(SelectorError) as caught:
            Database.open(url, **options)
        assert type(caught.value) is kind
        for word in words:
            assert word in str(caught.value)

    return check


@pytest.fixture(scope="session")
def make_record() -> Callable[..., Record]:
    """Makes a plausible record; records of different `number` differ."""
    return _make_record


def _make_record(number: int = 0, **given: Any) -> Record:
    hyperparameters = {"hidden": 64 + number, "bias": True, "dtype": "float32", "mode": "training"}
    timing = Timing(p20_ms=1.1, p50_ms=1.2 + number, p80_ms=1.3 + number, samples=3, raw_ms=(1.1, 0.3, 2.0))
    values: dict[str, Any] = {
        "problem": Problem("lstm", tuple(hyperparameters.items())),
        "implementation": "torch_lstm",
        "implementation_version": "0123456789ab",
        "device": DEVICE,
        "environment": ENVIRONMENT,
        "policy": "quick",
        "status": Status.OK,
        "gate": GateResult(passed=True, worst_error_ratio=0.25),
        "measured_at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        "forward": timing,
        "forward_backward": timing,
        "memory": Memory(peak_bytes=3, held_bytes=2, workspace_bytes=0),
    }
    return Record(**values | given)


def change(path: Path, *statements: str) -> None:
    """Execute statements that triggers would refuse; these are there again afterwards."""
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        triggers = raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        raw.execute("BEGIN")
        for name, _ in triggers:
            raw.execute(f"DROP TRIGGER {name}")
        for statement in (*statements, *(definition for _, definition in triggers)):
            raw.execute(statement)
        raw.execute("COMMIT")
