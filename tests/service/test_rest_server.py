"""A real server: started as a process, asked over a socket, stopped by a signal."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2 as httpx
import pytest

from kernel_selector.db.engine.backup import back_up
from tests.service.conftest import upload, uploads_in_the_file_alone

ROOT = Path(__file__).parents[2]
FACTORY = ["-m", "uvicorn", "--factory", "kernel_selector.service.app:from_environment", "--no-access-log"]
START_S = 600  # of a busy machine; seconds otherwise


@pytest.fixture(scope="module")
def database(database_file, tmp_path_factory):
    """A copy, which takes what is sent."""
    path = tmp_path_factory.mktemp("served") / "measured.sqlite"
    back_up(database_file, path)
    return path


@pytest.fixture(scope="module")
def server(database):
    """(process, base URL) of a server on a free port of the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "SELECTOR_DATABASE_URL": str(database), "PYTHONWARNINGS": "error"}
    command = [sys.executable, *FACTORY, "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_alive(process, url)
        yield process, url
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_until_alive(process, url):
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up:
        assert process.poll() is None, process.stderr.read()
        try:
            assert httpx.get(f"{url}/healthz").status_code == 200
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"no answer within {START_S} s")


def test_a_database_that_cannot_be_read_is_one_line_and_no_server(tmp_path):
    bad = tmp_path / "bad.sqlite"
    bad.write_bytes(b"no database at all" * 100)
    environment = {**os.environ, "SELECTOR_DATABASE_URL": str(bad)}
    command = [sys.executable, *FACTORY, "--host", "127.0.0.1", "--port", "0"]
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=START_S, check=False
    )
    assert ended.returncode not in (0, 3)
    assert ended.stderr.startswith("error: ")
    assert "bad.sqlite" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_it_answers_over_a_socket(server):
    _, url = server
    assert httpx.get(f"{url}/readyz").json()["status"] == "ready"
    body = {"hyperparameters": {"hidden": 256, "batch": 32}, "memory": "1GiB"}
    answer = httpx.post(f"{url}/v1/choices", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["source"] == "exact"
    assert answer.json()["memory_limit_bytes"] == 2**30


def test_a_large_body_is_refused_over_a_socket(server):
    _, url = server
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{url}/v1/choices", content=b" " * 2**20, headers=headers)
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"
    assert httpx.get(f"{url}/healthz").status_code == 200


def test_raw_bytes_that_are_no_text(server):
    _, url = server
    port = int(url.rsplit(":", 1)[1])
    body = b'\xff\xfe{"a": 1}'
    lines = (
        "POST /v1/choices HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    head = "".join(f"{line}\r\n" for line in (*lines, ""))
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.sendall(head.encode() + body)
        received = b""
        while part := connection.recv(65536):
            received += part
    assert received.startswith(b"HTTP/1.1 400 ")
    document = json.loads(received.split(b"\r\n\r\n", 1)[1])
    assert document["type"] == "urn:kernel-selector:problem:malformed-json"


def test_it_stops_on_sigterm_with_all_that_it_took_in_the_file(server, database):  # the last: it ends it
    process, url = server
    upload(url, database)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=300)
    assert process.returncode in (0, -signal.SIGTERM)
    assert "Application shutdown complete" in errors
    assert "Traceback" not in errors
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/healthz")
    assert uploads_in_the_file_alone(database) == 1
