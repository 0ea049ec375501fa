"""`selector serve --workers`: several processes that answer as one, see what is new, and end in order."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx2 as httpx
import pytest
import typer

from kernel_selector.db import Database, StoredModel, models, records
from kernel_selector.service.cli import serve
from kernel_selector.service.cli.serve import MOST_ENDS, WINDOW_S, Ends, require_free
from tests.service.conftest import measured_records, upload, uploads_in_the_file_alone

ROOT = Path(__file__).parents[2]
WORKERS = 2
START_S = 600.0  # of a busy machine; seconds otherwise
SEEN_S = 2.0  # after which the supervisor has seen that a worker has started
SOON_S = 20.0  # of what waits for no worker to start, nor for one that does not answer
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workers") / "measured.sqlite"
    with Database.open(str(path), create=True) as opened, opened.write() as connection:
        records.add(connection, records=measured_records())
    return path


@pytest.fixture(scope="module")
def server(database: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    with serving(database) as served:
        yield served


@contextmanager
def serving(database: Path, most_ends: int = MOST_ENDS) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process and its port, once it has said that it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = (
        f"import sys; from kernel_selector.service.cli import main, serve; serve.MOST_ENDS = {most_ends}"
    )
    command = [sys.executable, "-c", f"{program}; sys.exit(main())", "serve", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--workers", str(WORKERS), "--database", str(database)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    try:
        assert f"http://127.0.0.1:{port}" in process.stdout.readline()  # printed once one of them answers
        yield process, port
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def children(process: subprocess.Popen[str]) -> list[int]:
    """The workers by process id, without the helper that Python starts beside them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
            command = (stat.parent / "cmdline").read_text()
        except (OSError, IndexError):  # it has ended meanwhile
            continue
        if parent == process.pid and "resource_tracker" not in command:
            found.append(int(stat.parent.name))
    return found


def models_by_each(port: int) -> list[list[str]]:
    """What each of many connections is told: the kernel hands them to the workers in turn, more or less."""
    url = f"http://127.0.0.1:{port}/v1/models"
    return [[model["version"] for model in httpx.get(url).json()] for _ in range(20)]


def wait_for(what: str, holds, patience_s: float = START_S) -> None:
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def test_a_model_is_seen_by_all_workers_without_a_restart(server, database: Path) -> None:
    process, port = server
    before = children(process)
    assert len(before) == WORKERS
    assert models_by_each(port) == [[]] * 20
    trained = StoredModel(
        operator="gru",
        version="new",
        schema=1,
        manifest={},
        evaluation={},
        arrays=b"",
        created_at=datetime(2026, 1, 2, tzinfo=UTC),
    )
    with Database.open(str(database)) as opened, opened.write() as connection:
        models.add(connection, model=trained)
    wait_for("all workers know the model", lambda: models_by_each(port) == [["new"]] * 20)
    assert sorted(children(process)) == sorted(before)


def test_metrics_are_those_of_all_workers(server) -> None:
    _, port = server
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    counted = next(
        line
        for line in text.splitlines()
        if line.startswith("selector_requests_total") and "/v1/models" in line
    )
    assert float(counted.split()[-1]) >= 40


def replaced(process: subprocess.Popen[str], victims: list[int]) -> list[int]:
    """Kill workers; all that there are once others, which still import then, have taken their places."""
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    wait_for(
        "new workers",
        lambda: len(children(process)) == WORKERS and not {*victims} & {*children(process)},
        SOON_S,
    )
    return children(process)


def test_workers_that_die_are_replaced_while_others_start(server) -> None:
    process, port = server
    first, second = children(process)
    (starting,) = {*replaced(process, [first])} - {second}
    replaced(process, [starting, second])
    assert httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=START_S).status_code == 200


def test_the_service_ends_while_a_worker_starts_and_has_said_which_died(database: Path) -> None:
    with serving(database) as (process, _):
        victim = children(process)[0]
        replaced(process, [victim])
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=SOON_S)
    assert process.returncode == 0
    assert f"worker {victim} died of signal 9 (Killed)" in errors


@pytest.mark.full  # that the service ends where nobody answers, the next one shows of workers that are killed
def test_workers_that_fail_again_and_again_end_the_service(tmp_path: Path) -> None:
    """They were started anew for ever, and the service looked alive to who had started it."""
    gone = tmp_path / "gone.sqlite"
    with Database.open(str(gone), create=True), serving(gone, most_ends=1) as (process, _):
        for file in tmp_path.glob("gone.sqlite*"):
            file.unlink()
        for victim in children(process):
            os.kill(victim, signal.SIGKILL)
        _, errors = process.communicate(timeout=START_S)
    assert process.returncode == 1
    assert f"ended with exit code 1, as {WORKERS} within {WINDOW_S} s before; the service ends" in errors
    assert errors.count("another one takes its place") == WORKERS


def test_a_worker_that_answers_is_left_where_another_cannot_be_replaced(tmp_path: Path) -> None:
    """It was ended with the service, though it had all that it answers from.

    Where nobody answers the service ends: workers were started anew for ever, and it looked alive.
    """
    gone = tmp_path / "gone.sqlite"
    with Database.open(str(gone), create=True), serving(gone, most_ends=1) as (process, port):
        wait_for("both have started", lambda: sum(map(listens, children(process))) == WORKERS)
        time.sleep(SEEN_S)
        for file in tmp_path.glob("gone.sqlite*"):
            file.rename(file.with_name(f"away.{file.name}"))
        victim, other = children(process)
        os.kill(victim, signal.SIGKILL)
        assert process.stderr
        errors, said = process.stderr.fileno(), ""

        def waits_longer() -> bool:
            nonlocal said
            if select.select([errors], [], [], 0)[0]:
                said += os.read(errors, 2**16).decode()
            return "takes its place in 2 s" in said or process.poll() is not None

        wait_for("the supervisor waits longer", waits_longer)
        assert process.poll() is None, said
        assert other in children(process)
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        for file in tmp_path.glob("away.*"):
            file.rename(file.with_name(file.name.removeprefix("away.")))
        wait_for("another one listens", lambda: sum(map(listens, children(process))) == WORKERS)
        for victim in children(process):
            os.kill(victim, signal.SIGKILL)
        _, rest = process.communicate(timeout=START_S)
    assert process.returncode == 1
    assert f"died of signal 9 (Killed), as {WORKERS} within {WINDOW_S} s before; the service ends" in rest


def listens(worker: int) -> bool:
    """Whether a worker has got as far as its event loop."""
    try:
        opened = [os.readlink(one) for one in Path(f"/proc/{worker}/fd").iterdir()]
    except OSError:  # it ended meanwhile
        return False
    return "anon_inode:[eventpoll]" in opened


def test_ends_count_for_as_long_as_the_window_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(serve.time, "monotonic", lambda: now[0])
    ends = Ends(2)
    found = []
    for after in (0, 1, WINDOW_S, 1, WINDOW_S - 1, WINDOW_S - 2):
        now[0] += after
        found.append(ends.add())
    assert found == [False, False, False, False, False, False]
    now[0] += 1
    assert ends.add()


def test_workers_end_with_a_parent_that_is_killed(database: Path) -> None:
    with serving(database) as (process, port):
        replaced(process, children(process)[:1])  # one serves, one starts
        process.kill()
        wait_for("the port is free", lambda: is_free(port), SOON_S)


def is_free(port: int) -> bool:
    try:
        require_free("127.0.0.1", port)
    except typer.BadParameter:
        return False
    return True


def test_what_is_in_flight_is_finished_before_the_end(server, database: Path) -> None:  # the last: it ends it
    process, port = server
    upload(f"http://127.0.0.1:{port}", database)
    body = json.dumps({"hyperparameters": {"hidden": 256, "batch": 32}}).encode()
    head = (
        f"POST /v1/choices HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.sendall(head.encode() + body[:10])
        time.sleep(1.0)  # until a worker has begun to read it
        process.send_signal(signal.SIGTERM)
        time.sleep(2.0)
        connection.sendall(body[10:])
        received = b""
        while part := connection.recv(65536):
            received += part
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b'"source":"exact"' in received
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert not children(process)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{port}/healthz")
    assert uploads_in_the_file_alone(database) == 1
