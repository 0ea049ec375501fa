"""Choices judged on problems that were drawn after the cost model was frozen.

    python -m benchmarks.selection.sealed_sets draw --out plan.jsonl
    python -m kernel_selector.kernels.measure --problems plan.jsonl --device all --policy steady \\
        --output records.jsonl
    python -m benchmarks.selection.sealed_sets judge records.jsonl --commit HASH

The hash of the commit that froze the model is the seed of the draw, so nobody chooses the problems. They are
measured afterwards, on a kind of GPU that the database has measurements of, and judged once: what
`Selector.choose` answers from the measurements that ship, against the fastest measured implementation. A
choice without a good time there is not judged, and its share is a figure. `judge` appends a line to
`results/sealed_sets.jsonl` and keeps the records beside it; the commit is spent then: what was learned from
the set makes the next one honest only if another commit draws it. `judge` needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common.lines import keep, text_of
from benchmarks.common.result import RESULTS, ROOT, current_commit
from benchmarks.selection.visits import comparable, times_of
from kernel_selector.db import Database
from kernel_selector.db import records as stored
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, Record
from kernel_selector.kernels.measure.jobs import Job
from selector.profiling.sweep import sweep_jobs, write_plan
from selector.selection.choice import Choice
from selector.selection.query import Query
from selector.selection.selector import Selector
from selector.selection.shipped import unpacked
from selector.training.evaluation import quality

COUNT = 60  # problems of each operator
SIZES_MS = {"below 0.1 ms": 0.1, "below 1 ms": 1.0, "1 ms or longer": float("inf")}
PAIRS = 20  # that are named, of chosen and fastest implementation
WORSE = 1.01  # times torch's own


class Verdict(NamedTuple):
    """Loss of one choice on one problem; `slowdown` is None where the choice has no good time."""

    problem: Problem
    choice: Choice
    fastest: str
    fastest_ms: float
    slowdown: float | None
    default_slowdown: float | None


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw a set, or judge one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    draw = commands.add_parser("draw", help="write the problems that the current commit draws")
    draw.add_argument("--out", type=Path, required=True, metavar="FILE")
    judge = commands.add_parser("judge", help="judge choices on what was measured, once")
    judge.add_argument("records", type=Path, metavar="FILE", help="records of all problems drawn")
    judge.add_argument("--database", help="URL or path (default: the measurements that ship)")
    judge.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    for one in (draw, judge):
        one.add_argument("--commit", default="HEAD", help="that froze the model (default: the current one)")
        one.add_argument("--count", type=int, default=COUNT, help=f"of each operator (default: {COUNT})")
    given = parser.parse_args(arguments)
    commit, since = committed(given.commit)
    if given.command == "draw":
        problems, candidates = write_plan(given.out, drawn(commit, given.count))
        print(f"{problems} problems, {candidates} candidates, drawn by {commit}: {given.out}")
        return
    text = text_of(given.records)
    log = given.results / "sealed_sets.jsonl"
    line = judged(text, commit, since, count=given.count, database=given.database, log=log)
    keep(text, given.results / line["records"])
    with log.open("a") as lines:
        print(json.dumps(line), file=lines)
    print(json.dumps({name: line[name] for name in ("all", "source", "operator", "unjudged")}, indent=1), log)


def committed(revision: str) -> tuple[str, datetime]:
    """The full hash of a commit, and when it was made."""
    shown = ["git", "show", "--no-patch", "--format=%H %cI", revision]
    done = subprocess.run(shown, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"{revision}: no commit of this checkout. Give the hash of the one that drew the set."
        )
    commit, made = done.stdout.split()
    return commit, datetime.fromisoformat(made)


def drawn(commit: str, count: int) -> list[Job]:
    """A sweep's problems with the commit as the seed, each with all implementations, compiled ones too."""
    jobs = sweep_jobs(registry.operators(), "cuda", count=count, seed=int(commit[:8], 16))
    return [Job(job.problem, tuple(registry.implementations(job.problem.operator))) for job in jobs]


def judged(
    text: str, commit: str, since: datetime, *, count: int, database: str | None, log: Path
) -> dict[str, Any]:
    """A line of the log. Exits where the set is spent, another commit's, or known to the database."""
    if log.exists() and any(json.loads(line)["drawn_by"] == commit for line in log.read_text().splitlines()):
        raise SystemExit(
            f"{commit} is spent: {log.name} has its figure. Draw the next set by another commit."
        )
    records = [Record.from_json(line) for line in text.splitlines()]
    if not records:
        raise SystemExit("No records: measure what `draw` wrote first.")
    wanted = {job.problem for job in drawn(commit, count)}
    found = {record.problem for record in records}
    if found - wanted:
        raise SystemExit(
            f"{len(found - wanted)} of {len(found)} problems are not drawn by {commit} with --count {count}, "
            f"for example: {next(iter(found - wanted)).key}. Judge what `draw` wrote, by the same code."
        )
    early = [record for record in records if record.measured_at < since]
    if early:
        raise SystemExit(
            f"{len(early)} records were measured before {commit} was made: that is no sealed set."
        )
    device = records[0].device
    with Database.open(database or unpacked()) as opened:
        leaked = known(opened, found, device.key, since)
        if leaked:
            raise SystemExit(f"The database has measured {leaked} of these problems since {commit}: a leak.")
        verdicts = asked(
            Selector(opened, frozen=True, shipped=False), comparable(times_of(records)), device.key
        )
    return {
        "name": "sealed_set",
        "drawn_by": commit,
        "judged_by": current_commit(),
        "judged_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "measured_at": min(record.measured_at for record in records).isoformat(timespec="seconds"),
        "device": device.name,
        "environment": records[0].environment.to_dict(),
        "drawn": len(wanted),
        "measured": len(found),
        "records": f"sealed_set_{commit[:12]}_{device.key}.jsonl.xz",
        "all": figures(verdicts),
        **{name: grouped(verdicts, key) for name, key in GROUPS.items()},
        "unjudged": unjudged(verdicts, records),
        "pairs": pairs(verdicts),
    }


def known(database: Database, problems: set[Problem], device_key: str, since: datetime) -> int:
    """Number of the problems that the database has measured after a time on this kind of device."""
    with database.read() as connection:
        late = {
            record.problem
            for operator in {problem.operator for problem in problems}
            for record in stored.find(connection, operator=operator, device_key=device_key)
            if record.measured_at >= since
        }
    return len(late & problems)


def asked(
    selector: Selector, times: Mapping[Problem, Mapping[str, float]], device: str | Device
) -> list[Verdict]:
    """The verdict on what a user gets for each problem, by the times of its implementations in ms."""
    queries = [
        Query(hyperparameters=dict(problem.as_dict), operator=problem.operator, device=device)
        for problem in times
    ]
    verdicts = []
    for (problem, known), choice in zip(times.items(), selector.choose_each(queries), strict=True):
        if not isinstance(choice, Choice):
            raise choice
        fastest = min(known, key=lambda name: known[name])
        default = known.get(registry.operator(problem.operator).default)
        mine, best = known.get(choice.implementation), known[fastest]
        verdicts.append(
            Verdict(problem, choice, fastest, best, mine and mine / best, default and default / best)
        )
    return verdicts


GROUPS: Mapping[str, Callable[[Verdict], str]] = {
    "source": lambda one: one.choice.source,
    "operator": lambda one: one.problem.operator,
    "size": lambda one: next(name for name, most in SIZES_MS.items() if one.fastest_ms < most),
    "dtype": lambda one: str(one.problem["dtype"]),
    "mode": lambda one: str(one.problem["mode"]),
}


def grouped(verdicts: Sequence[Verdict], key: Callable[[Verdict], str]) -> dict[str, Any]:
    """The figures of each group."""
    found: dict[str, list[Verdict]] = defaultdict(list)
    for one in verdicts:
        found[key(one)].append(one)
    return {name: figures(each) for name, each in sorted(found.items())}


def figures(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The distribution of slowdowns, sampling errors of its mean and share, the share of unjudged choices."""
    losses = [one.slowdown for one in verdicts if one.slowdown is not None]
    found = {"problems": len(verdicts), "unjudged": round(1 - len(losses) / len(verdicts), 4)}
    if not losses:
        return found
    spread = quality(losses)
    worse = [
        one.slowdown > WORSE * one.default_slowdown
        for one in verdicts
        if one.slowdown is not None and one.default_slowdown is not None
    ]
    within = spread.within_5_percent
    return found | {
        "gmean": round(spread.gmean, 4),
        "gmean_error": round(float(np.std(np.log(losses)) / len(losses) ** 0.5), 4),
        "p95": round(spread.p95, 3),
        "p99": round(spread.p99, 3),
        "within_5_percent": round(within, 4),
        "within_5_percent_error": round((within * (1 - within) / len(losses)) ** 0.5, 4),
        "slower_than_default": round(float(np.mean(worse)), 4) if worse else None,
    }


def unjudged(verdicts: Sequence[Verdict], records: Sequence[Record]) -> dict[str, int]:
    """Number of choices that have no good time, by implementation and what became of it."""
    status = {(record.problem, record.implementation): record.status.value for record in records}
    found = Counter(
        f"{one.problem.operator}.{one.choice.implementation}: "
        f"{status.get((one.problem, one.choice.implementation), 'not measured')}"
        for one in verdicts
        if one.slowdown is None
    )
    return dict(found.most_common())


def pairs(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Chosen and fastest implementations by their share of the whole loss, the largest first."""
    losses: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for one in verdicts:
        if one.slowdown is not None and one.slowdown > 1:
            key = (one.problem.operator, one.choice.implementation, one.fastest)
            losses[key].append(float(np.log(one.slowdown)))
    total = sum(map(sum, losses.values()))
    order = sorted(losses, key=lambda key: -sum(losses[key]))
    return [
        {
            "operator": operator,
            "chosen": chosen,
            "fastest": fastest,
            "problems": len(losses[operator, chosen, fastest]),
            "share": round(sum(losses[operator, chosen, fastest]) / total, 4),
        }
        for operator, chosen, fastest in order[:PAIRS]
    ]


if __name__ == "__main__":
    main()
