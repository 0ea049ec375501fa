"""Quality of choices and times for a GPU that nothing was measured on.

    python -m benchmarks.selection.transfer FILE [FILE ...] [--database URL]

FILEs are records of sweeps on a kind of GPU that the database (default: what ships) has nothing of, as
`python -m kernels.measure --output FILE` writes them. Each problem is asked about on that device, and is
judged by what was measured there: the choice against the fastest, times against times, and how often they are
in their intervals, which are made for nine of ten. Writes `transfer_<device>.json`. Needs no GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.lines import text_of
from benchmarks.common.result import RESULTS, write_result
from benchmarks.selection.sealed_sets import asked, contests
from kernel_selector.db import Database
from kernel_selector.db import records as stored
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Record
from selector.selection.choice import Choice
from selector.selection.selector import Selector
from selector.selection.shipped import unpacked
from selector.training.verdicts import Contest, summed_up, verdict


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask, judge, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sweeps", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--database", help="URL or path (default: the measurements that ship)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    given = parser.parse_args(arguments)
    records = [Record.from_json(line) for file in given.sweeps for line in text_of(file).splitlines()]
    device = replace(records[0].device, host="")
    found = contests([one for one in records if _is_known(one)], device)
    with Database.open(given.database or unpacked()) as database:
        with database.read() as connection:
            measured = stored.devices(connection)
        if device.key in {one.key for one in measured}:
            raise SystemExit(f"{device.name} is in the database: nothing would be carried over to it.")
        choices = asked(Selector(database, frozen=True, shipped=False), found)
    payload = {
        "of_device": device.to_dict(),
        "sweeps": [file.name for file in given.sweeps],
        **summed_up(list(map(verdict, found, choices))),
        "times": errors(found, choices),
    }
    print(payload["all"], payload["times"], sep="\n")
    print(write_result(f"transfer_{device.key}", payload, torch_device="cpu", folder=given.results))


def _is_known(record: Record) -> bool:
    """Whether its implementation has not been taken out since."""
    return record.implementation in registry.implementations(record.problem.operator)


def errors(found: Sequence[Contest], choices: Sequence[Choice]) -> dict[str, Any]:
    """Relative errors of all candidates' times, quantiles in doublings, and how often intervals hold."""
    triples = [
        (contest.times[candidate.name], candidate.time_ms, candidate.time_interval_ms)
        for contest, choice in zip(found, choices, strict=True)
        for candidate in choice.candidates
        if candidate.time_ms is not None and candidate.name in contest.times
    ]
    measured, foretold = (np.array([each[place] for each in triples]) for place in (0, 1))
    inside = [low <= time <= high for time, _, (low, high) in triples]
    return {
        "candidates": len(triples),
        "median_error": round(float(np.median(np.abs(foretold / measured - 1))), 4),
        "doublings": {
            f"p{share}": round(float(np.percentile(np.log2(measured / foretold), share)), 3)
            for share in (5, 50, 95)
        },
        "in_their_intervals": round(float(np.mean(inside)), 4),
    }


if __name__ == "__main__":
    main()
