"""A PostgreSQL server of a benchmark's own, which can be made to fail."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.common.serving import free_port

START_S = 60.0  # that a start may take, recovery included
IMMEDIATE, KILL = signal.SIGQUIT, signal.SIGKILL  # a shutdown without a checkpoint, and none at all


@dataclass
class Server:
    """A server on a port of the loopback interface. Raises SystemExit where it cannot be started."""

    programs: Path
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """URL of the server's database, for psycopg and for us."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, again and again while what is left of a killed one is in the way, and wait for it."""
        deadline = time.monotonic() + START_S
        options = ["-D", self.folder / "data", "-k", self.folder, "-h", "127.0.0.1", "-p", str(self.port)]
        while not self._answers():
            if time.monotonic() > deadline:
                raise SystemExit(f"PostgreSQL did not start:\n{(self.folder / 'log').read_text()[-2000:]}")
            if self.process is None or self.process.poll() is not None:
                with (self.folder / "log").open("ab") as log:
                    self.process = subprocess.Popen(
                        [self.programs / "postgres", *options], stderr=log, cwd=self.folder, **account()
                    )
            time.sleep(0.2)

    def fail(self, how: signal.Signals) -> None:
        """End it by a signal, and wait for that."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


def account() -> dict[str, Any]:
    """PostgreSQL refuses root: then it runs as the user `postgres`."""
    return {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}


@contextmanager
def running() -> Iterator[Server]:
    """A new server with an empty database, removed with the block."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    programs = next((folder for folder in folders if (folder / "postgres").exists()), None)
    if programs is None:
        raise SystemExit("No PostgreSQL programs here: install them, or name a database with --database.")
    with tempfile.TemporaryDirectory(prefix="selector-postgres-") as name:
        server = Server(programs, Path(name), free_port())
        if account():
            shutil.chown(name, "postgres", "postgres")
        initdb = [programs / "initdb", "-D", f"{name}/data", "-A", "trust", "-U", "postgres"]
        subprocess.run(initdb, check=True, cwd=name, stdout=subprocess.DEVNULL, **account())
        try:
            server.start()
            yield server
        finally:
            server.fail(signal.SIGINT)
