"""`selector serve` as a process: what it prints, and its log of requests."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2 as httpx
import pytest

from kernel_selector.service.app import from_environment
from kernel_selector.service.cli import main
from kernel_selector.service.cli.serve import is_loopback

ROOT = Path(__file__).parents[2]


def log_of(database: Path, ask: Callable[[int], object], *options: str, **settings: str) -> str:
    """What a server with these settings says on stderr while it is asked, by its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "kernel_selector.service.cli", "serve", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--database", str(database), *options],
        cwd=ROOT,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    try:
        assert f":{port}" in process.stdout.readline()  # printed once questions are answered
        ask(port)
    finally:
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=300)
    return log


def ask_for_devices(port: int) -> None:
    httpx.get(f"http://127.0.0.1:{port}/v1/devices").raise_for_status()


# that they are logged, tests of who waits in vain and of logs of JSON show as well
@pytest.mark.parametrize("logged", [pytest.param(True, marks=pytest.mark.full), False])
def test_requests_are_logged_unless_switched_off(database_file: Path, logged: bool) -> None:
    log = log_of(database_file, ask_for_devices, SELECTOR_ACCESS_LOG=str(logged))
    assert ("GET '/v1/devices' 200" in log) is logged
    assert "Traceback" not in log


@pytest.mark.parametrize("workers", ["1", "2"])
def test_every_line_of_a_log_of_json_is_json(database_file: Path, workers: str) -> None:
    def ask(port: int) -> None:
        ask_for_devices(port)
        with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
            connection.sendall(b"no HTTP at all\r\n\r\n")
            assert b" 400 " in connection.recv(65536)

    log = log_of(database_file, ask, "--workers", workers, SELECTOR_LOG_FORMAT="json")
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["path"] for line in lines if "path" in line] == ["/v1/devices"]
    assert [line["level"] for line in lines if "Invalid HTTP" in line.get("message", "")] == ["warning"]


def test_who_waits_in_vain_while_the_service_ends_is_told_so(database_file: Path) -> None:
    held: list[socket.socket] = []

    def ask(port: int) -> None:
        connection = socket.create_connection(("127.0.0.1", port), timeout=300)
        held.append(connection)
        head = "POST /v1/choices HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: 50\r\n\r\n{{".encode())
        ask_for_devices(port)  # by then the server knows of the other

    before = datetime.now(UTC)
    log = log_of(database_file, ask, SELECTOR_SHUTDOWN_S="1", TZ="Asia/Tokyo")
    after = datetime.now(UTC)
    answer = held[0].recv(65536)
    held[0].close()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"problem:ending" in answer
    assert "POST '/v1/choices' 503" in log
    assert "Traceback" not in log
    for line in log.splitlines():  # each begins with its time in UTC, wherever the machine is
        moment, level, _ = line.split(maxsplit=2)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", moment), line
        assert before <= datetime.fromisoformat(moment) + timedelta(milliseconds=1) <= after
        assert level in ("INFO:", "WARNING:", "ERROR:")


@pytest.mark.parametrize(
    ("host", "free"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("gpu-node", False),
    ],
)
def test_only_the_loopback_interface_goes_without_tokens(host: str, free: bool) -> None:
    assert is_loopback(host) is free


def test_the_extender_says_where_it_answers_once_it_does(database_file: Path) -> None:
    command = [sys.executable, "-m", "kernel_selector.service.cli", "extender", "--host", "::1", "--json"]
    with socket.socket(socket.AF_INET6) as free:
        free.bind(("::1", 0))
        command += ["--port", str(free.getsockname()[1]), "--database", str(database_file)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        said = json.loads("".join(process.stdout.readline() for _ in range(3)))  # as soon as it is said
        assert "//[::1]:" in said["serving"]
        address = said["serving"].removesuffix("/k8s/v1")
        assert httpx.get(f"{address}/healthz").status_code == 200
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)


def test_the_extender_never_listens_with_less_than_was_asked_for(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    database_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SELECTOR_DATABASE_URL", str(database_file))
    file = tmp_path / "no.pem"
    file.write_text("nothing")
    assert main(["extender", "--certificate", str(file), "--key", str(file)]) == 2
    assert "--client-ca" in capsys.readouterr().err
    assert main(["extender", "--certificate", str(file), "--key", str(file), "--client-ca", str(file)]) == 2
    assert str(file) in capsys.readouterr().err
    file.write_text("[" * 100_000)
    assert main(["extender", "--nodes", str(file)]) == 2
    assert "cannot be read as JSON" in capsys.readouterr().err


def test_the_extender_listens_elsewhere_only_with_certificates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extender", "--host", "0.0.0.0"]) == 2
    assert "--client-ca" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "serve --workers 2", "extender", "worker --until-empty"])
@pytest.mark.parametrize("misspelt", ["measurments.sqlite", "folder/measurements.sqlite"])
def test_a_database_that_the_environment_names_must_be_there(
    command: str,
    misspelt: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What ships would answer in its place, `/readyz` call that ok, and every upload fail."""
    place = tmp_path / misspelt
    monkeypatch.setenv("SELECTOR_DATABASE_URL", str(place))
    for name in ("serve._serve_here", "serve._serve_with", "extender.run_announced"):
        monkeypatch.setattr(f"kernel_selector.service.cli.{name}", lambda *_: None)
    assert main(command.split()) == 1
    assert f"No database at {place}" in capsys.readouterr().err
    assert not place.exists()


def test_the_factory_of_another_server_needs_the_database_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELECTOR_DATABASE_URL", str(tmp_path / "misspelt.sqlite"))
    with pytest.raises(SystemExit, match=r"error: No database at .*misspelt\.sqlite"):
        from_environment()
