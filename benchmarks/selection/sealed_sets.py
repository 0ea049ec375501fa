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
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
from selector.training.verdicts import Contest, summed_up, verdict

COUNT = 60  # problems of each operator


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
    measured = {record.problem for record in records}
    if measured - wanted:
        raise SystemExit(
            f"{len(measured - wanted)} of {len(measured)} problems are not drawn by {commit} with --count "
            f"{count}, for example: {next(iter(measured - wanted)).key}. Judge what `draw` wrote, by the "
            "same code."
        )
    early = [record for record in records if record.measured_at < since]
    if early:
        raise SystemExit(
            f"{len(early)} records were measured before {commit} was made: that is no sealed set."
        )
    device = records[0].device
    with Database.open(database or unpacked()) as opened:
        leaked = known(opened, measured, device.key, since)
        if leaked:
            raise SystemExit(f"The database has measured {leaked} of these problems since {commit}: a leak.")
        found = contests(records, device.key)
        choices = asked(Selector(opened, frozen=True, shipped=False), [one.query for one in found])
    line = {
        "name": "sealed_set",
        "drawn_by": commit,
        "judged_by": current_commit(),
        "judged_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "measured_at": min(record.measured_at for record in records).isoformat(timespec="seconds"),
        "device": device.name,
        "environment": records[0].environment.to_dict(),
        "drawn": len(wanted),
        "measured": len(measured),
        "records": f"sealed_set_{commit[:12]}_{device.key}.jsonl.xz",
    }
    groups = summed_up(list(map(verdict, found, choices)))  # by device too, of which there is one here
    return line | {name: value for name, value in groups.items() if name not in line}


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


def contests(records: Sequence[Record], device: str | Device) -> list[Contest]:
    """Problems with several good times among records of one device, and how the others ended there."""
    times = comparable(times_of(records))
    outcomes: dict[Problem, dict[str, str]] = {problem: {} for problem in times}
    samples: dict[Problem, dict[str, int]] = {problem: {} for problem in times}
    for one in records:
        if one.problem in times:
            outcomes[one.problem][one.implementation] = one.status.value
            samples[one.problem][one.implementation] = one.total.samples if one.total else 0
    return [Contest(each, device, times[each], samples[each], outcomes[each]) for each in times]


def asked(selector: Selector, queries: Sequence[Query]) -> list[Choice]:
    """The choice that a user gets for each question. Raises the first error."""
    answers = selector.choose_each(queries)
    for one in answers:
        if not isinstance(one, Choice):
            raise one
    return [one for one in answers if isinstance(one, Choice)]


if __name__ == "__main__":
    main()
