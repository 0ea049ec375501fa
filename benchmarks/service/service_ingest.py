"""Rate of records that come in over REST: python -m benchmarks.service.service_ingest [--records N].

`POST /v1/measurements` with new records, in bodies of a thousand over one connection, into an empty SQLite
file and an empty PostgreSQL server of the benchmark's own. Each record is checked, its author stored, and
outliers looked for. Records per second by the clock, client included, and the server's processor time for
each. Writes `benchmarks/results/service_ingest.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from benchmarks.common.postgres import running
from benchmarks.common.result import write_result
from benchmarks.common.serving import OURS, serving
from kernel_selector.db import Database
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Record
from kernel_selector.service import tokens
from kernel_selector.service.openapi.example_record import LINE

BODY = 1000  # records
REPEATED = 10  # records of each problem


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=20_000)
    given = parser.parse_args()
    bodies = made(given.records)
    with tempfile.TemporaryDirectory() as folder:
        figures = {"sqlite": ingest(str(Path(folder) / "records.sqlite"), bodies)}
    with running() as server:
        figures["postgresql"] = ingest(server.url, bodies)
    print(json.dumps(figures, indent=2))
    print(write_result("service_ingest", {"records": given.records, "body": BODY, "figures": figures}))


def made(count: int) -> list[str]:
    """`count` different records as bodies, REPEATED of each problem at different times."""
    first, lstm = Record.from_json(LINE), registry.operator("lstm")
    lines = []
    for number in range(count):
        kind = number // REPEATED
        problem = lstm.problem(hidden=1 + kind % 512, batch=1 + kind // 512)
        moment = first.measured_at + timedelta(seconds=number)
        lines.append(replace(first, problem=problem, measured_at=moment).to_json() + "\n")
    return ["".join(lines[start : start + BODY]) for start in range(0, count, BODY)]


def ingest(url: str, bodies: list[str]) -> dict[str, float]:
    """Send all bodies to a service over an empty database."""
    Database.open(url, create=True).close()
    os.environ["BENCHMARK_TOKEN"] = tokens.create_token(url, "benchmark", scopes=["measure"])
    with serving(OURS, url) as server:
        server.wait_until_idle()  # it warms up beside the first requests
        post = server.connect()
        started, before_s, added = time.perf_counter(), server.cpu_s(), 0
        for body in bodies:
            added += json.loads(post("/v1/measurements", body))["added"]
        spent_s, cpu_s = time.perf_counter() - started, server.cpu_s() - before_s
    del os.environ["BENCHMARK_TOKEN"]
    if added != BODY * len(bodies):
        raise SystemExit(f"{added} records were added, not {BODY * len(bodies)}")
    return {
        "records_per_s": round(added / spent_s),
        "server_cpu_us_per_record": round(cpu_s / added * 1e6, 1),
    }


if __name__ == "__main__":
    main()
