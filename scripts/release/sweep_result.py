"""Keep a sweep as a result: python -m scripts.release.sweep_result RECORDS LOG --commit HASH [--name NAME].

RECORDS and LOG are what `python -m kernels.measure --problems plan.jsonl --policy steady --output RECORDS`
wrote to its output and to stderr. Writes `benchmarks/results/<name>.jsonl.xz`, by which
`scripts.release.ship` extends the measurements that come with the package, and `<name>.json`: on what, when,
how many of which status, and the end of the log. Needs no GPU.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.lines import keep, text_of
from benchmarks.common.result import RESULTS, laid_out
from kernel_selector.kernels.contract import Record

LOG_LINES = 5  # at the end of the log, which say how long what took
RATE = re.compile(r"([\d.]+) candidates a second")
TOOK = re.compile(r"Measured in ([\d.]+) s")


def main() -> None:
    """Read both files and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--commit", required=True, help="of the code that measured")
    parser.add_argument("--command", default="", help="that measured")
    parser.add_argument("--name", default="steady_nvidia-h200")
    given = parser.parse_args()
    text = text_of(given.records)
    kept = RESULTS / f"{given.name}.jsonl.xz"
    keep(text, kept)
    result = {
        "name": "sweep",
        **summary([Record.from_json(line) for line in text.splitlines()]),
        **said(given.log.read_text().splitlines()),
        "commit": given.commit,
        "command": given.command,
        "records": kept.name,
    }
    path = RESULTS / f"{given.name}.json"
    path.write_text(laid_out(dict(sorted(result.items()))) + "\n")
    print(f"{path}: {result['statuses']}, {kept.stat().st_size:,} bytes of records")


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Place and time of the records' measurement, and their counts by status and operator."""
    first = min(records, key=lambda record: record.measured_at)
    operators: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        operators[record.problem.operator][record.status.value] += 1
    spreads = [record.total.spread for record in records if record.total]
    return {
        "measured_at": first.measured_at.isoformat(timespec="seconds"),
        "device": first.device.to_dict(),
        "environment": first.environment.to_dict(),
        "median_spread": round(median(spreads), 4) if spreads else None,
        "problems": len({record.problem for record in records}),
        "statuses": dict(sum(operators.values(), Counter())),
        "operators": {name: dict(counts) for name, counts in operators.items()},
    }


def said(log: Sequence[str]) -> dict[str, Any]:
    """The rate and the seconds that the log's end gives, and that end."""
    last = [line for line in log if not line.startswith("[")][-LOG_LINES:]  # without what came of each
    end = "\n".join(last)
    rate, took = RATE.search(end), TOOK.search(end)
    return {
        "candidates_per_s": float(rate[1]) if rate else None,
        "seconds": float(took[1]) if took else None,
        "log_tail": last,
    }


if __name__ == "__main__":
    main()
