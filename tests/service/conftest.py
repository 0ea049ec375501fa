import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx2 as httpx
import pytest
from starlette.testclient import TestClient

from kernel_selector.db import Database, records
from kernel_selector.kernels import measure, registry
from kernel_selector.kernels.contract import GateResult, Memory, Record, Status, Timing
from kernel_selector.kernels.devices import known_device
from kernel_selector.service.app import create_app
from kernel_selector.service.openapi.example_record import LINE
from kernel_selector.service.tokens import create_token
from selector import Selector

MEASURED = ({"hidden": 256, "batch": 32}, {"hidden": 64, "batch": 8})


def measured_records():
    """A record of every implementation that takes the problem, as if measured here and now."""
    device, environment = measure.probe("cpu"), measure.current_environment()
    for sizes in MEASURED:
        problem = registry.operator("lstm").problem(sizes)
        accepted, _ = registry.candidates(problem, device)
        for rank, implementation in enumerate(accepted, start=1):
            yield Record(
                problem=problem,
                implementation=implementation.name,
                implementation_version=implementation.version,
                device=device,
                environment=environment,
                policy="quick",
                status=Status.OK,
                gate=GateResult(passed=True, worst_error_ratio=0.1),
                measured_at=datetime(2026, 1, 1, tzinfo=UTC),
                forward=Timing(p20_ms=rank, p50_ms=rank * 1.01, p80_ms=rank * 1.02, samples=9),
                forward_backward=Timing(p20_ms=2 * rank, p50_ms=2.02 * rank, p80_ms=2.04 * rank, samples=9),
                memory=Memory(peak_bytes=2**25 * rank, held_bytes=2**24 * rank, workspace_bytes=2**23 * rank),
            )


def records_on_gpus():
    """Records of a few sizes on two kinds of GPU, the first of which is twice as fast."""
    template = next(iter(measured_records()))
    environment = measure.current_environment()
    for factor, key in enumerate(("h200", "nvidia-a100-sxm4-80gb"), start=1):
        for operator in ("lstm", "gru"):
            for batch in (16, 32, 64):
                name = registry.operator(operator).default
                time = dict.fromkeys(("p20_ms", "p50_ms", "p80_ms"), batch * factor * 1.0)
                timing = Timing(**time, samples=9)
                yield replace(
                    template,
                    problem=registry.operator(operator).problem({"hidden": 1024, "batch": batch}),
                    implementation=name,
                    implementation_version=registry.implementation(operator, name).version,
                    device=replace(known_device(key), host="a processor"),
                    environment=environment,
                    forward=timing,
                    forward_backward=timing,
                )


@pytest.fixture(scope="session")
def gpu_database(tmp_path_factory):
    """An SQLite file with measurements on two kinds of GPU."""
    path = tmp_path_factory.mktemp("gpus") / "measured.sqlite"
    with Database.open(path, create=True) as database, database.write() as connection:
        records.add(connection, list(records_on_gpus()))
    return path


@pytest.fixture(scope="session")
def database_file(tmp_path_factory):
    """An SQLite file with measurements of a few problems on this machine's CPU."""
    path = tmp_path_factory.mktemp("rest") / "measured.sqlite"
    with Database.open(str(path), create=True) as database, database.write() as connection:
        records.add(connection, records=measured_records())
    return path


@pytest.fixture
def empty_database(tmp_path):
    """An SQLite file with our tables and nothing in them."""
    path = tmp_path / "empty.sqlite"
    Database.open(str(path), create=True).close()
    return path


@pytest.fixture(scope="session")
def selector(database_file):
    """The selector over the measured database."""
    opened = Selector(str(database_file))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def client(selector):
    """A client of the service over the measured database; a fault of ours is a 500, as over a socket."""
    with TestClient(
        create_app(selector), base_url="http://127.0.0.1", raise_server_exceptions=False
    ) as started:
        yield started


def upload(url: str, database: Path) -> None:
    """Send a record to a running service, with a new token that may."""
    secret = create_token(database, "uploader", scopes=("measure",))
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/x-ndjson"}
    answer = httpx.post(f"{url}/v1/measurements", content=f"{LINE}\n", headers=headers)
    assert answer.status_code == 200, answer.text


def uploads_in_the_file_alone(database: Path) -> int:
    """Uploads that the journal of an SQLite file has, without its write-ahead log."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro&immutable=1", uri=True)) as alone:
        query = "SELECT count(*) FROM audit WHERE action = 'measurements.upload'"
        return int(alone.execute(query).fetchone()[0])
