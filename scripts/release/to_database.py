"""Put what comparisons and sweeps measured into a database, for the selector to choose from.

    R=benchmarks/results
    python -m scripts.release.to_database $R/recurrent_nvidia-h200.json.xz [--database URL]
    python -m scripts.release.to_database $R/steady_survey_nvidia-h200_further.jsonl.xz [--database URL]

Records that are there already stay as they are.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.common.lines import text_of
from benchmarks.common.peers import is_peer
from kernel_selector.db import Database, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import (
    Device,
    Environment,
    GateResult,
    Memory,
    Record,
    Status,
    Timing,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the file, store its records and say how many."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "file", type=Path, help="what one of them wrote: JSON, or lines of it compressed by xz"
    )
    parser.add_argument("--database", help="URL or path (default: the user's)")
    options = parser.parse_args(arguments)
    found = list(read_records(options.file))
    with Database.open(options.database, create=True) as database:
        with database.write() as connection:
            added = records.add(connection, found)
        print(f"{added} of {len(found)} records are new in {database.location}")


def read_records(file: Path) -> Iterator[Record]:
    """The records of a result file of a comparison, or of a sweep's compressed lines."""
    if ".jsonl" not in file.suffixes:
        yield from stored_records(json.loads(text_of(file)))
        return
    with lzma.open(file, "rt") as lines:
        for line in lines:
            yield Record.from_json(line)


def stored_records(result: Mapping[str, Any]) -> Iterator[Record]:
    """The file's candidates as the records that they were, but for rounded error ratios."""
    circumstances = [
        (Device.from_dict(run["device"]), Environment.from_dict(run["environment"]), run)
        for run in result["runs"]
    ]
    for cell in result["records"]:
        values = dict(cell["problem"])
        problem = registry.operator(values.pop("operator")).problem(values)
        device, environment, run = circumstances[cell["run"]]
        for name, candidate in cell["candidates"].items():
            if is_peer(name):  # which nothing chooses
                continue
            yield Record(
                problem=problem,
                implementation=name,
                implementation_version=run["versions"][f"{problem.operator}.{name}"],
                device=device,
                environment=environment,
                policy=cell["policy"],
                seed=run["seed"],
                measured_at=datetime.fromisoformat(cell["measured_at"]),
                **_outcome(candidate),
            )


def _outcome(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record that are of its candidate alone."""
    status, reason = Status(candidate["status"]), candidate.get("reason", "")
    ratio = candidate.get("error_ratio")
    gate = GateResult.not_reached(candidate.get("gate") or reason)
    if ratio is not None:
        passed = status is not Status.INCORRECT
        gate = GateResult(passed=passed, worst_error_ratio=ratio, detail=candidate.get("gate", ""))
    memory = candidate.get("memory")
    return {
        "status": status,
        "reason": reason,
        "gate": gate,
        "memory": Memory(**memory) if memory else None,
        **{
            name: Timing(**{**timing, "raw_ms": tuple(timing["raw_ms"])})
            for name, timing in candidate["times"].items()
        },
    }


if __name__ == "__main__":
    main()
