"""Rates at which records are stored and found.

    python -m benchmarks.service.insert_records [--records N] [--database URL]

Made-up records of 5,000 problems, ten implementations and two devices, each with its raw times, go into
an empty database, by default an SQLite file in a temporary folder; then all are read back. Prints the
rates and writes them, with what they were measured on, to `benchmarks/results/insert_records.json`.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy

from benchmarks.common.result import write_result
from kernel_selector.db import Database, records, snapshot
from kernel_selector.kernels.contract import (
    Device,
    Environment,
    GateResult,
    Memory,
    Problem,
    Record,
    Status,
    Timing,
)

PROBLEMS, IMPLEMENTATIONS, RAW_SAMPLES = 5000, 10, 10


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000, help="how many (default 100,000)")
    parser.add_argument("--database", help="URL of an empty database; default an SQLite file of its own")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.database or str(Path(folder) / "measurements.sqlite")
        with Database.open(url, create=True) as database:
            result = measure(database, options.records)
    print(json.dumps(result, indent=2))
    print(write_result("insert_records", result))


def measure(database: Database, number: int) -> dict[str, Any]:
    """Seconds and rates of storing and finding `number` records, which are made beforehand."""
    made = list(make_records(number))
    with database.write() as connection:
        cpu_before_s = time.process_time()
        add_s, added = timed(lambda: records.add(connection, made))
        add_cpu_s = time.process_time() - cpu_before_s
    with database.write() as connection:
        again_s, twice = timed(lambda: records.add(connection, made))
    with database.read() as connection:
        find_s, found = timed(lambda: list(records.find(connection)))
        snapshot_s, _ = timed(lambda: snapshot(connection))
        counts_s, _ = timed(lambda: records.counts(connection))
    stamp_s, _ = timed(lambda: [database.stamp() for _ in range(1000)])
    if (added, twice) != (number, 0) or found != made:
        raise SystemExit(f"Stored {added}, again {twice}, found {len(found)} of {number} records.")
    return {
        "records": number,
        "add_s": round(add_s, 3),
        "add_cpu_s": round(add_cpu_s, 3),
        "add_rows_per_s": round(number / add_s),
        "add_again_s": round(again_s, 3),
        "find_s": round(find_s, 3),
        "find_rows_per_s": round(number / find_s),
        "snapshot_ms": round(snapshot_s * 1e3, 1),
        "counts_ms": round(counts_s * 1e3, 1),
        "stamp_us": round(stamp_s * 1e3, 2),
        "database": database.url.split(":")[0],
        "sqlalchemy": sqlalchemy.__version__,
        "sqlite": sqlite3.sqlite_version,
    }


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Wall-clock seconds, and the result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def make_records(number: int) -> Iterator[Record]:
    """Records as a sweep gives them, all different, the same in each run."""
    draw = random.Random(0)
    devices = [
        Device(name=name, kind="cpu", host=name, matmul_flops_per_s={"float32": 1e11}) for name in "AB"
    ]
    environment = Environment(
        python="3.12",
        torch="2.13",
        triton=None,
        cuda=None,
        cudnn=None,
        driver=None,
        threads=2,
        system="Linux",
    )
    problems = [make_problem(index) for index in range(PROBLEMS)]
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for index in range(number):
        timing = make_timing(draw)
        yield Record(
            problem=problems[index // IMPLEMENTATIONS % PROBLEMS],
            implementation=f"implementation_{index % IMPLEMENTATIONS}",
            implementation_version="0123456789ab",
            device=devices[index // (IMPLEMENTATIONS * PROBLEMS) % len(devices)],
            environment=environment,
            policy="quick",
            status=Status.OK,
            gate=GateResult(passed=True, worst_error_ratio=draw.random()),
            measured_at=start + timedelta(seconds=index),
            forward=timing,
            forward_backward=timing,
            memory=Memory(peak_bytes=index * 64, held_bytes=index * 32, workspace_bytes=index * 16),
        )


def make_problem(index: int) -> Problem:
    """A problem like those of the LSTM layer."""
    sizes = {"hidden": 8 + index, "input": 64, "batch": 32, "seq": 50, "layers": 1}
    rest = {"bidirectional": False, "bias": True, "dtype": "float32", "mode": "training"}
    return Problem("lstm", tuple({**sizes, **rest}.items()))


def make_timing(draw: random.Random) -> Timing:
    """Percentiles and the samples themselves."""
    raw_ms = sorted(draw.uniform(0.1, 10) for _ in range(RAW_SAMPLES))
    return Timing(
        p20_ms=raw_ms[2], p50_ms=raw_ms[5], p80_ms=raw_ms[8], samples=RAW_SAMPLES, raw_ms=tuple(raw_ms)
    )


if __name__ == "__main__":
    main()
