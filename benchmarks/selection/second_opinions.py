"""Choices held against a second measurement.

    python -m benchmarks.selection.second_opinions DATABASE FILE [FILE ...]

FILEs are records of a sweep over problems that the database has as well. The model that has not seen a
problem chooses by what the database has of the others, as `selector evaluate` does, and each choice is judged
twice: by the measurements of the database, and by those of the sweep. Choices that seemed to lose nothing and
those that seemed to lose something are counted apart: of both, some seem so by chance, and only a second
measurement of both tells how many. That holds for problems drawn at random from each group, by the same model
and figures: groups change with these. Writes `second_opinions_<device>.json`. Needs no GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common.lines import text_of
from benchmarks.common.result import RESULTS, write_result
from benchmarks.selection.visits import Times, times_of
from kernel_selector.db import Database
from kernel_selector.kernels.contract import Problem, Record
from selector.training.dataset import Dataset
from selector.training.robustness import unseen_choices
from selector.training.train import load_measured
from selector.training.verdicts import quality

# sweeps alike: a problem taken for a comparison has more samples, and says less of the others
POLICIES = ("steady", "steady_survey")
SEEMED = {"to lose at most 5 %": (0.0, 0.05), "to lose 5 to 12 %": (0.05, 0.12)}


class Opinion(NamedTuple):
    """Two measurements of one choice: its time over the best by each, and by how much the second differs."""

    first: float
    second: float
    shift: float  # median over candidates of the logarithm of second over first


def main(arguments: Sequence[str] | None = None) -> None:
    """Choose, judge twice, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("database", help="URL or path: what was measured first")
    parser.add_argument("sweep", type=Path, nargs="+", metavar="FILE", help="what was measured again")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    given = parser.parse_args(arguments)
    records = [Record.from_json(line) for file in given.sweep for line in text_of(file).splitlines()]
    again, device = times_of(records), records[0].device.key
    with Database.open(given.database) as database:
        names = sorted({problem.operator for problem in again})
        found = [one for name in names for one in opinions(load_measured(name, database, device)[0], again)]
    groups = {name: figures(found, *losses) for name, losses in SEEMED.items()}
    payload = {
        "of_device": device,
        "sweeps": [file.name for file in given.sweep],
        "policies": POLICIES,
        "choices_that_seemed": groups,
    }
    for name, group in groups.items():
        print(f"Choices that seemed {name}: {group}")
    print(write_result(f"second_opinions_{device}", payload, folder=given.results))


def opinions(dataset: Dataset, again: Mapping[Problem, Times]) -> Iterator[Opinion]:
    """An opinion on each problem of which all candidates were measured again."""
    for rows, choice in unseen_choices(dataset):
        record = dataset.records[rows[0]]
        second = again.get(record.problem, {})
        mine = {row: str(dataset.implementation[row]) for row in rows}
        if len(rows) < 2 or record.policy not in POLICIES or not set(mine.values()) <= second.keys():
            continue
        times = {row: (float(dataset.time_ms[row]), second[name]) for row, name in mine.items()}
        chosen, best = times[choice], [min(each) for each in zip(*times.values(), strict=True)]
        shift = float(np.median([np.log(new / old) for old, new in times.values()]))
        yield Opinion(chosen[0] / best[0], chosen[1] / best[1], shift)


def figures(found: Sequence[Opinion], least: float, most: float) -> dict[str, Any]:
    """Figures of the choices that seemed to lose more than `least`, or nothing, and at most `most`."""
    mine = [one for one in found if (one.first > 1 + least or not least) and one.first <= 1 + most]
    if not mine:
        return {"choices": 0}
    first, second = quality([one.first for one in mine]), quality([one.second for one in mine])
    return {
        "choices": len(mine),
        "lose_more_than_5_percent_by_the_second": round(1 - second.within_5_percent, 4),
        "gmean_by_the_first": round(first.gmean, 4),
        "gmean_by_the_second": round(second.gmean, 4),
        "the_second_took_longer_by": round(float(np.expm1(np.median([one.shift for one in mine]))), 4),
    }


if __name__ == "__main__":
    main()
