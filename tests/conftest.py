"""What all tests share: a database of their own each, and a PostgreSQL server where there is one."""

from __future__ import annotations

import gc
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

# a test knows the measurements that it has stored itself: what ships is on in the tests of it alone
os.environ["SELECTOR_SHIPPED"] = "off"
# what Inductor has compiled stays from run to run, also where the folder for temporary files does not
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(__file__).parents[1] / ".cache/inductor"))
LOCAL_SERVER = "postgresql://postgres@127.0.0.1:5432/test"


WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if WORKERS > 1:  # else each of them, and each process that they start, takes all cores
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // WORKERS)))
# reasons to skip that no installing removes: no package brings Kubernetes' scheduler
NOT_INSTALLED = re.compile(r"\bGPUs?\b|on this processor|^Skipped: KUBE_SCHEDULER")
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="also the tests marked `full`: every case of each grid"
    )
    parser.addoption(
        "--require",
        action="store_true",
        help="fail, instead of skipping, the tests that miss a program, a package or a server, but not a GPU",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only the full run holds."""
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_collection_finish() -> None:
    """Spare what was collected, a million objects that stay, each later collection of garbage: it took a
    second, and whatever measures memory or times begins with one.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _required((yield), item.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _required((yield), collector.config)


def _required(report: Report, config: pytest.Config) -> Report:
    """The report; of a skip that `--require` forbids, a failure with the reason."""
    if report.skipped and config.getoption("--require") and not hasattr(report, "wasxfail"):
        path, line, reason = report.longrepr
        ours = Path(path).is_relative_to(Path(__file__).parent)  # scikit-learn's checks know what applies
        if ours and not NOT_INSTALLED.search(reason):
            report.outcome = "failed"
            report.longrepr = f"{path}:{line}: --require allows no skip: {reason}"
    return report


@pytest.fixture(autouse=True)
def _default_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reaches the user's database."""
    monkeypatch.setenv("SELECTOR_DATABASE_URL", str(tmp_path / "default.sqlite"))


@pytest.fixture(autouse=True)
def _empty_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of what is in a database need not wait for Alembic: the tests of migrations do, in tests/db."""
    if "kernel_selector.db.engine.migrations" in sys.modules:  # else the test has no database
        from kernel_selector.db.engine import migrations
        from tests.empty_databases import again

        monkeypatch.setattr(migrations, "upgrade", again(migrations.upgrade))


@pytest.fixture(autouse=True)
def _unawaited_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for the disk."""
    if "kernel_selector.db.engine.sqlite" in sys.modules:
        from kernel_selector.db.engine import sqlite
        from tests.empty_databases import unawaited

        monkeypatch.setattr(sqlite, "_write_ahead", unawaited(sqlite._write_ahead))


@pytest.fixture
def sqlite_database(tmp_path: Path):
    """An empty database of the current revision in a temporary folder."""
    from kernel_selector.db import Database

    with Database.open(tmp_path / "measurements.sqlite", create=True) as database:
        yield database


@pytest.fixture
def quick_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cost models of a few trees and a network that hardly learns: for tests of what is done with them."""
    from selector.training import estimator, network

    trees = estimator.boosted_trees
    monkeypatch.setattr(estimator, "boosted_trees", lambda most, *sizes: trees(min(most, 15), *sizes))
    monkeypatch.setattr(network, "EPOCHS", 3)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a PostgreSQL database: TEST_DATABASE_URL, a local server, or one started for the tests."""
    given = os.environ.get("TEST_DATABASE_URL")
    if given or _answers(LOCAL_SERVER):
        yield given or LOCAL_SERVER
        return
    programs = _programs()
    if programs is None:
        pytest.skip(f"no PostgreSQL: TEST_DATABASE_URL is not set, none at {LOCAL_SERVER}, and no initdb")
    with _own_server(programs) as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """URL of an empty schema of its own, dropped afterwards: parallel runs do not meet."""
    with _own_schema(postgres_server) as url:
        yield url


@pytest.fixture(scope="module")
def shared_postgres_url(postgres_server: str) -> Iterator[str]:
    """The same for the tests of one file."""
    with _own_schema(postgres_server) as url:
        yield url


@contextmanager
def _own_schema(server: str) -> Iterator[str]:
    import psycopg

    schema = f"test_{os.getpid()}_{time.time_ns()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        yield f"{server}{'&' if '?' in server else '?'}options=-csearch_path%3D{schema}"
        connection.execute("SET client_min_messages = warning")
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


def _answers(url: str) -> bool:
    import psycopg

    try:
        psycopg.connect(url, connect_timeout=3).close()
    except psycopg.OperationalError:
        return False
    return True


def _programs() -> Path | None:
    """The folder with initdb and postgres."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


@contextmanager
def _own_server(programs: Path) -> Iterator[str]:
    """A server on a free port, as the user `postgres` when we are root: PostgreSQL refuses root."""
    account = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
    folder = tempfile.mkdtemp(prefix="selector-postgres-")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if account:
        shutil.chown(folder, "postgres", "postgres")
    initdb = [programs / "initdb", "-D", f"{folder}/data", "-A", "trust", "-U", "postgres", "--no-sync"]
    subprocess.run(initdb, check=True, cwd=folder, stdout=subprocess.DEVNULL, **account)
    options = ["-D", f"{folder}/data", "-k", folder, "-h", "127.0.0.1", "-p", str(port), "-F"]
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    with (
        open(f"{folder}/log", "wb") as log,
        subprocess.Popen([programs / "postgres", *options], cwd=folder, stderr=log, **account) as server,
    ):
        try:
            deadline = time.monotonic() + 300
            while not _answers(url):
                if server.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"the PostgreSQL server did not start:\n{Path(log.name).read_text()}")
                time.sleep(0.1)
            yield url
        finally:
            server.terminate()
    shutil.rmtree(folder)
