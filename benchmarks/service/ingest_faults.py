"""Acknowledged measurements under faults: python -m benchmarks.service.ingest_faults [--seconds S].

Clients send records one at a time to `selector serve` and keep those that were acknowledged, while it is
killed and started again, its SQLite file finds no room, and its PostgreSQL server is killed, shut down and
silent. At the end each record that was acknowledged must be in the database, once. Writes
`benchmarks/results/service_ingest_faults.json`.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from benchmarks.common import postgres
from benchmarks.common.result import write_result
from benchmarks.common.serving import Server, served
from benchmarks.service.service_ingest import made
from kernel_selector.db import Database, records
from kernel_selector.service import tokens
from tests.service.relay import Relay

CLIENTS = 3
FEW_BYTES = 2**20  # that a file of the service may have when there is no room
SILENT_S = 8.0


@dataclass
class Run:
    """A service over a database, what is sent to it, and what it acknowledged."""

    url: str
    token: str
    limit_bytes: int | None = None
    server: Server | None = None
    acknowledged: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    started: int = 0
    _open: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        """Start the service, or start it again."""
        self._open.close()
        self._open = ExitStack()
        self.server = self._open.enter_context(served(self.url, limit_bytes=self.limit_bytes))
        self.started += 1

    def kill(self) -> None:
        """End the service at once, and start it again."""
        assert self.server is not None
        os.kill(self.server.pid, signal.SIGKILL)
        self.start()

    def stop(self) -> None:
        """End the service."""
        self._open.close()

    def send(self, bodies: Any, ended: threading.Event) -> None:
        """Send records until told to end. What has no answer may be stored or not: it is not sent again."""
        headers = {"content-type": "application/x-ndjson", "authorization": f"Bearer {self.token}"}
        while not ended.is_set():
            body = next(bodies)
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)  # type: ignore[union-attr]
                connection.request("POST", "/v1/measurements", body, headers)
                answer = connection.getresponse()
                answer.read()
                if answer.status == 200:
                    self.acknowledged.append(body)
                else:
                    self.refused[str(answer.status)] += 1
                    time.sleep(0.05)
            except (OSError, http.client.HTTPException):
                self.refused["no answer"] += 1
                time.sleep(0.1)


def main() -> None:
    """Send under faults, count and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="of each row")
    given = parser.parse_args()
    bodies = iter([f"{line}\n" for body in made(200_000) for line in body.splitlines()])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, limit_bytes in (("SQLite, kill -9 of the service", None), ("SQLite, disk full", FEW_BYTES)):
            url = str(Path(folder) / f"{limit_bytes}.sqlite")
            run = Run(url, prepared(url), limit_bytes)
            rows.append(row(name, run, url, bodies, given.seconds, [Run.kill]))
    with postgres.running() as store:
        token, relay = prepared(store.url), Relay("127.0.0.1", store.port)
        relayed = make_url(store.url).set(port=relay.port).render_as_string(hide_password=False)

        def silent(_: Run) -> None:
            relay.hush()
            time.sleep(SILENT_S)
            relay.speak()

        faults = [silent, Run.kill, failing(store, postgres.KILL), failing(store, postgres.IMMEDIATE)]
        name = "PostgreSQL, silent, killed and shut down, kill -9 of the service"
        rows.append(row(name, Run(relayed, token), store.url, bodies, 3 * given.seconds, faults))
        relay.close()
    print(json.dumps(rows, indent=1))
    print(write_result("service_ingest_faults", {"clients": CLIENTS, "rows": rows}))


def prepared(url: str) -> str:
    """A token of a new database."""
    Database.open(url, create=True).close()
    return tokens.create_token(url, "measure", scopes=["measure"])


def failing(store: postgres.Server, how: signal.Signals) -> Callable[[Run], None]:
    """A fault: the PostgreSQL server ends and is started again."""

    def fail(_: Run) -> None:
        store.fail(how)
        time.sleep(2.0)
        store.start()

    return fail


def row(
    name: str, run: Run, url: str, bodies: Any, seconds: float, faults: list[Callable[[Run], None]]
) -> dict[str, Any]:
    """Counts of a run: acknowledged records, and those of them that are missing or there twice."""
    ended, lock = threading.Event(), threading.Lock()

    class Shared:
        def __next__(self) -> str:
            with lock:
                return next(bodies)

    run.start()
    threads = [threading.Thread(target=run.send, args=(Shared(), ended)) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    until, met = time.monotonic() + seconds, 0
    for fault in itertools.cycle(faults):
        time.sleep(seconds / 10)
        if time.monotonic() > until:
            break
        fault(run)
        met += 1
    ended.set()
    for thread in threads:
        thread.join()
    with suppress(Exception):
        run.stop()
    with Database.open(url) as store, store.read() as connection:
        there = Counter(record.to_json() for record in records.find(connection))
    sent = [body.strip() for body in run.acknowledged]
    return {
        "faults": name,
        "met": met,
        "acknowledged": len(sent),
        "missing": sum(not there[one] for one in sent),
        "more_than_once": sum(number > 1 for number in there.values()),
        "stored": sum(there.values()),
        "refused": dict(run.refused),
    }


if __name__ == "__main__":
    main()
