"""Signals while `selector serve` and the extender start: nothing is in flight, and they end at once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernel_selector.service import app
from kernel_selector.service.cli import serve
from kernel_selector.service.cli.serve import worker

ROOT = Path(__file__).parents[2]
SOON_S = 5.0  # on a busy machine; a tenth of a second otherwise
PROGRAM = """
import importlib, sys, time

def held(*_, **__):
    print("held", flush=True)
    time.sleep(600)

owner, *names, last = importlib.import_module(sys.argv.pop(1)), *sys.argv.pop(1).split(".")
for name in names:
    owner = getattr(owner, name)
setattr(owner, last, held)
from kernel_selector.service.cli import main
sys.exit(main())
"""

SIGNALLED = """
import os, signal, uvicorn
from kernel_selector.service import app
from kernel_selector.service.cli import serve

app.from_environment = lambda: print("it loads", flush=True)
serve._end_with_parent = lambda: None
server = uvicorn.Server(uvicorn.Config("kernel_selector.service.cli.serve:worker", factory=True))
with server.capture_signals():
    os.kill(os.getpid(), signal.SIGTERM)
    serve.worker()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("command", "held"),
    [
        pytest.param("serve", ("selector", "Selector.__init__"), id="serve opens its database"),
        pytest.param("serve", ("selector", "Selector.choose"), id="serve loads"),
        pytest.param("extender", ("selector", "Selector.__init__"), id="the extender opens its database"),
        pytest.param("extender", ("kernel_selector.service.extender", "warm_up"), id="the extender warms up"),
    ],
)
def test_a_signal_ends_a_start_at_once(
    command: str, held: tuple[str, str], number: signal.Signals, database_file: Path
) -> None:
    """It was heeded when all had been read, seconds later."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = ["--port", str(free.getsockname()[1]), "--database", str(database_file)]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *held, command, *place],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        started = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=SOON_S)
    finally:
        process.kill()
        process.communicate()
    assert time.monotonic() - started < SOON_S
    assert (out, err) == ("", "")
    assert process.returncode == (130 if number == signal.SIGINT else -number)


def test_a_worker_ends_at_once_until_it_listens_and_in_order_then(monkeypatch: pytest.MonkeyPatch) -> None:
    class Server:
        started = should_exit = False

        def handle_exit(self, number: int, _: object) -> None:
            ends.append(("in order", number))

    ends: list[tuple[str, int]] = []
    monkeypatch.setattr(serve, "end_at_once", lambda number: ends.append(("at once", number)))
    monkeypatch.setattr(serve, "_end_with_parent", lambda: None)
    monkeypatch.setattr(app, "from_environment", SimpleNamespace)
    server = Server()
    before = signal.signal(signal.SIGTERM, server.handle_exit)
    try:
        worker()
        os.kill(os.getpid(), signal.SIGTERM)
        server.started = True
        ends.append(("it listens", 0))
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ends[0] == ("at once", signal.SIGTERM)
    assert ends[-1] == ("in order", signal.SIGTERM)
    assert ends.index(("it listens", 0)) == len(ends) - 2


def test_a_signal_before_a_worker_loads_ends_it_at_once() -> None:
    """It was noted by uvicorn alone, which looked at that when all had been loaded, seconds later."""
    process = subprocess.Popen(
        [sys.executable, "-c", SIGNALLED], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("", "", -signal.SIGTERM)
