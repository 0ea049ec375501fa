"""The service over measurements of this repository, in this process: for the page's tests and pictures."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from benchmarks.common.result import read_result
from kernel_selector.db import Database, records
from kernel_selector.service.app import create_app
from kernel_selector.service.settings import Settings
from scripts.release.to_database import stored_records
from selector import Selector

MEASURED = Path(__file__).parents[1] / "benchmarks/results/recurrent_nvidia-h200.json.xz"
START_S = 240.0


def fill(path: Path) -> None:
    """Make a database of what was measured of recurrent layers on an H200."""
    found = stored_records(read_result(MEASURED))
    with Database.open(path, create=True) as database, database.write() as connection:
        records.add(connection, found)


@contextmanager
def serving(path: Path) -> Iterator[str]:
    """The base URL of a service over a database, on a free port of the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    selector = Selector(path)
    application = create_app(selector, settings=Settings(access_log=False))
    server = uvicorn.Server(uvicorn.Config(application, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + START_S
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError("The service did not start.")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
        selector.close()
