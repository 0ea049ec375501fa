"""A server in a process of its own, of the service or of another application, and what is asked of it."""

from __future__ import annotations

import http.client
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

OURS = ["--factory", "kernel_selector.service.app:from_environment"]
LOOK_S = 1.0  # between two looks at what a server computes
LONGEST_WAIT_S = 120.0  # of which warming up takes some 10
IDLE_SHARE = 0.05  # of a core: as good as nothing


@dataclass(frozen=True)
class Server:
    """A running server."""

    port: int
    pid: int

    def cpu_s(self) -> float:
        """Processor time that it has used."""
        after_name = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        """Memory that it holds."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def wait_until_idle(self) -> None:
        """Wait until it has warmed up, and computes no more. Raises SystemExit where it goes on too long."""
        give_up = time.monotonic() + LONGEST_WAIT_S
        before, now = -1.0, self.cpu_s()
        while now - before > IDLE_SHARE * LOOK_S:
            if time.monotonic() > give_up:
                raise SystemExit(f"After {LONGEST_WAIT_S:.0f} s the server still computes, unasked.")
            time.sleep(LOOK_S)
            before, now = now, self.cpu_s()

    def connect(self) -> Callable[[str, str], bytes]:
        """A function that posts a body to a path over a connection of its own, and gives the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        token = os.environ.get("BENCHMARK_TOKEN", "")

        def post(path: str, body: str) -> bytes:
            kind = "application/x-ndjson" if path.endswith("measurements") else "application/json"
            headers = {"content-type": kind, **({"authorization": f"Bearer {token}"} if token else {})}
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            answer = response.read()
            if response.status != 200:
                raise SystemExit(f"{path} answered {response.status}: {answer[:500].decode()}")
            return answer

        return post


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def percentiles(times_ms: list[float], digits: int) -> dict[str, float]:
    """Median, 90th and 99th, rounded."""
    cuts = statistics.quantiles(times_ms, n=100)
    return {f"p{one}_ms": round(cuts[one - 1], digits) for one in (50, 90, 99)}


@contextmanager
def serving(
    application: list[str], database: str | None = None, *, threads: int | None = 1
) -> Iterator[Server]:
    """A server of its own process, which ends with the block; `threads` of numpy and torch, None for all."""
    command = ["uvicorn", *application, "--log-level", "warning", "--no-access-log"]
    with _running(command, database, threads) as server:
        yield server


@contextmanager
def served(database: str, *, limit_bytes: int | None = None, **settings: str) -> Iterator[Server]:
    """`selector serve` over a database alone, in a process of its own, which ends with the block; `settings`
    are variables of its environment. No file that it writes may have more than `limit_bytes`."""
    command = ["kernel_selector.service.cli", "serve"]
    with _running(command, database, 1, limit_bytes=limit_bytes, **settings) as server:
        yield server


@contextmanager
def _running(
    command: list[str],
    database: str | None,
    threads: int | None,
    *,
    limit_bytes: int | None = None,
    **settings: str,
) -> Iterator[Server]:
    port = free_port()
    environment = {**os.environ, "SELECTOR_ACCESS_LOG": "false", **settings}
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    if database:
        environment |= {"SELECTOR_DATABASE_URL": database, "SELECTOR_SHIPPED": "off"}  # it alone
    command = [sys.executable, "-m", *command, "--port", str(port)]
    process = subprocess.Popen(command, env=environment)
    if limit_bytes is not None:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    try:
        while True:
            if process.poll() is not None:
                raise SystemExit("the server did not start; its message is above")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port)
                connection.request("GET", "/healthz")
                connection.getresponse().read()
                break
            except OSError:
                time.sleep(0.1)
        yield Server(port, process.pid)
    finally:
        process.terminate()
        process.wait()
