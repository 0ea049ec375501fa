"""Cost of a large database to the service: start, memory, the first choice and the page.

    python -m benchmarks.service.service_start [--records N] [--database URL]

Made-up records of two kinds of devices go into an empty database, by default an SQLite file in a temporary
folder. Then: time and processor time from the start of the process until `/readyz` says 200, and the memory
that it holds then; the same after the first choice about one of the devices, which loads half of the
records; and the page at `/`, first and again. Writes `benchmarks/results/service_start_<kind>.json`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common.result import write_result
from benchmarks.common.serving import OURS, Server, serving
from benchmarks.service.insert_records import make_records
from kernel_selector.db import Database, records

DEVICE = "a"  # the key of one of the two that `make_records` has
PROBLEM = {"hidden": 64, "input": 64, "batch": 32, "seq": 50}
PAGE = f"/?operator=lstm&device={DEVICE}&" + "&".join(f"set.{name}={size}" for name, size in PROBLEM.items())
READY_S = 600.0
PAGES = 20


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="how many (default 1,000,000)")
    parser.add_argument("--database", help="URL of an empty database; default an SQLite file of its own")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = given.database or str(Path(folder) / "measurements.sqlite")
        with Database.open(url, create=True) as database:
            kind = database.url.split(":")[0].split("+")[0]
            with database.write() as connection:
                records.add(connection, make_records(given.records))
        figures = measure(url)
    result = {"records": given.records, "database": kind, "figures": figures}
    print(json.dumps(result, indent=2))
    print(write_result(f"service_start_{kind}", result))


def measure(url: str) -> dict[str, float]:
    """All figures of a service that is started over the database."""
    question = json.dumps({"operator": "lstm", "hyperparameters": PROBLEM, "device": DEVICE})
    started = time.perf_counter()
    with serving(OURS, url) as server:
        while get(server, "/readyz")[0] != 200:
            if time.perf_counter() - started > READY_S:
                raise SystemExit(f"not ready within {READY_S} s: {get(server, '/readyz')[1][:500]!r}")
            time.sleep(0.02)
        figures = {"ready_s": time.perf_counter() - started}
        figures |= {"ready_cpu_s": server.cpu_s(), "ready_mib": resident_mib(server)}
        with spent(server) as cost:
            server.connect()("/v1/choices", question)
        figures |= {
            "first_choice_s": cost[0],
            "first_choice_cpu_s": cost[1],
            "loaded_mib": resident_mib(server),
        }
        with spent(server) as cost:
            page(server)
        figures |= {"first_page_s": cost[0], "first_page_cpu_s": cost[1]}
        costs = []
        for _ in range(PAGES):
            with spent(server) as cost:
                page(server)
            costs.append(cost)
        figures["page_ms"] = statistics.median(seconds for seconds, _ in costs) * 1e3
        figures["page_cpu_ms"] = statistics.fmean(cpu_s for _, cpu_s in costs) * 1e3
    return figures


def page(server: Server) -> None:
    """Ask for the page with a map and a choice."""
    status, answer = get(server, PAGE)
    if status != 200:
        raise SystemExit(f"the page answered {status}: {answer[:2000].decode()}")


def get(server: Server, path: str) -> tuple[int, bytes]:
    """Status and body of a path."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read()


def resident_mib(server: Server) -> float:
    """The memory that the process holds."""
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def spent(server: Server) -> Iterator[list[float]]:
    """After the block: its seconds, and those of the server's processor."""
    cost: list[float] = []
    started, cpu_s = time.perf_counter(), server.cpu_s()
    yield cost
    cost += [time.perf_counter() - started, server.cpu_s() - cpu_s]


if __name__ == "__main__":
    main()
