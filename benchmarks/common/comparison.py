"""The program of every comparison: measure what is missing of its rows, within a budget, and store it.

Compiled kernels are brought into their caches by several processes at once before anything is timed; then
one process judges and times problem after problem, and each is stored when it is done.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common import peers
from benchmarks.common.arguments import add_result_arguments, result_folder
from benchmarks.common.result import RESULTS, BadResult, current_commit, pack
from benchmarks.common.rows import Cell, Row, cells, missing
from benchmarks.common.sessions import measure_all
from benchmarks.common.store import Kind, Store
from kernel_selector.kernels.contract import MeasurementFailed, Problem, Record, Status
from kernel_selector.kernels.measure import COMPARE, Policy, Session, default_torch_device
from kernel_selector.kernels.measure.sweeps import parse_seconds

SMOKE = replace(COMPARE, name="smoke", min_samples=2, max_samples=2, warmup_ms=0)
PREPARING_SHARE = 0.4  # of the budget, at most
MOST_HANGS = 3  # of an implementation: each costs a minute


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Settings of a comparison: what is compared, and how carefully.

    `name` is that of its files; `small` gives a row tiny problems; `timed(name, on_cpu)` says whether an
    implementation is timed on every problem; `mixed` cells come in an order by chance, those of careful rows
    first: what a budget leaves out is then some of each row, and problems that need the same kernels compiled
    are not prepared by several processes at once. `preparing` is the policy of the processes that only fill
    caches, for cells that are `prepared`, problems of a `lane` in one process; `shown` are the figures in the
    line that each cell prints.
    """

    name: str
    kind: Kind
    small: Callable[[Row], Row]
    timed: Callable[[str, bool], bool]
    policy: Policy
    careful: Policy
    preparing: Policy
    shown: tuple[str, ...]
    mixed: bool = False
    prepared: Callable[[Cell], bool] = lambda _: True
    lane: Callable[[Problem], int] = lambda _: 0
    first: Callable[[Sequence[Cell], Session], None] = lambda *_: None  # before anybody takes the memory

    def cells(self, rows: Sequence[Row], without: Sequence[str] = (), *, on_cpu: bool = False) -> list[Cell]:
        """Every problem of the rows once, with whoever is timed on it."""
        found = cells(rows, without=without, timed=lambda name: self.timed(name, on_cpu))
        if not self.mixed:
            return found
        return sorted(random.Random(0).sample(found, len(found)), key=lambda cell: not cell.careful)


def main(comparison: Comparison, description: str, arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, print and store it. The exit code: 0, 2 for a file that cannot be used, or 3
    where the budget left some out.
    """
    with peers.registered():
        try:
            return _main(comparison, _parser(comparison, description).parse_args(arguments))
        except BadResult as error:  # which may hold hours of a GPU: it is not written over
            _say(f"{error} Or move it away.")
            return 2


def _main(comparison: Comparison, options: argparse.Namespace) -> int:
    folder = result_folder(options, comparison.name)
    if options.join:
        return _join(comparison, folder, options.join)
    end = time.monotonic() + parse_seconds(options.budget)
    rows = list(map(comparison.small, comparison.kind.rows)) if options.smoke else comparison.kind.rows
    device = "cpu" if options.smoke else options.device or default_torch_device()
    commit = options.commit or current_commit()
    with Session(device, seed=options.seed, worker=peers.WORKER) as session:
        key = session.device.key
        name = f"{comparison.name}_{key}"
        store = Store(folder, _of_shard(name, options.shard), comparison.kind, rows=rows)
        files = _files({folder} if options.smoke else {folder, RESULTS}, name)
        store.load(files, commit if options.one_commit else None)
        chosen = [row for row in rows if not options.rows or row.name in options.rows]
        for operator in missing(chosen):
            _say(f"There is no operator {operator}: its problems are left out.")
        wanted = comparison.cells(chosen, options.skip, on_cpu=device == "cpu")
        todo = [cell for cell in _share(wanted, options.shard) if not (options.resume and store.holds(cell))]
        _say(f"{session.device.name}: {len(todo)} problems to measure, {len(store.cells)} stored")
        if todo:
            store.start(session, todo, commit)
            comparison.first(todo, session)
            hung = _prepare(comparison, todo, session, options, end)
            schedule = Schedule(hung, smoke=options.smoke, end=end)
            todo = measure(comparison, todo, session, store, schedule)
    print(*_lines(store.summaries()), sep="\n")
    if store.cells:
        print(store.write())
    if todo:
        _say(f"The budget is spent: {len(todo)} problems are left. Run the same with --resume.")
    return 3 if todo else 0


def _parser(comparison: Comparison, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    rows = [row.name for row in comparison.kind.rows]
    processes = min(8, len(os.sched_getaffinity(0)) // 2)
    add = parser.add_argument
    add("--device", help="cpu or cuda:0 (default: the GPU if there is one)")
    add("--budget", default="9m", help="start no problem that would end later (default: 9m)")
    add("--rows", nargs="+", metavar="NAME", choices=rows, help=f"of {', '.join(rows)}")
    add("--skip", nargs="+", default=[], metavar="NAME", help="implementations to leave out")
    add("--shard", type=parse_shard, metavar="i/n", help="every n-th problem, from the i-th on")
    add("--resume", action="store_true", help="skip what the result files hold")
    add("--one-commit", action="store_true", help="leave out what they hold of other commits")
    add("--join", metavar="DEVICE", help="put all files of a device (nvidia-h200) together, and stop")
    add("--prepare", type=int, default=processes, metavar="N", help=f"processes (default: {processes})")
    smoke, seed = "tiny problems on the CPU", "inputs and parameters"
    add_result_arguments(parser, smoke=smoke, verb="store", seed=seed)
    return parser


def parse_shard(text: str) -> tuple[int, int]:
    """1/4 as (1, 4). Raises ValueError."""
    index, _, count = text.partition("/")
    if not 1 <= int(index) <= int(count):
        raise ValueError
    return int(index), int(count)


def _of_shard(name: str, shard: tuple[int, int] | None) -> str:
    return name + (".{}-of-{}".format(*shard) if shard else "")


def _files(folders: Iterable[Path], name: str) -> list[Path]:
    """Every result file of a comparison on a device, whole and in shards, packed or not."""
    patterns = f"{name}.*json", f"{name}.json.xz"
    return [file for folder in folders for one in patterns for file in sorted(folder.glob(one))]


def _join(comparison: Comparison, folder: Path, key: str) -> int:
    name = f"{comparison.name}_{key}"
    store, files = Store(folder, name, comparison.kind), _files({folder}, name)
    store.load(files)
    if not store.cells:
        _say(f"{folder} has no result of {key}.")
        return 2
    written = store.write()
    for file in files:
        if file != written:
            file.unlink(missing_ok=True)  # what was packed has been replaced
    path = pack(written.read_text(), written)
    print(*_lines(store.summaries()), path, sep="\n")
    return 0


def _share(found: list[Cell], shard: tuple[int, int] | None) -> list[Cell]:
    return found[shard[0] - 1 :: shard[1]] if shard else found


def _prepare(
    comparison: Comparison, todo: list[Cell], session: Session, options: argparse.Namespace, end: float
) -> dict[str, list[Record]]:
    """Have kernels compiled, in several processes; who hung, by problem. On CPUs there is nothing to do."""
    hung: dict[str, list[Record]] = defaultdict(list)
    if session.torch_device == "cpu" or not options.prepare:
        return hung
    start, count = time.monotonic(), 0
    # a compiler that tunes has the device for itself: what it kept among others would not be its best
    jobs = [
        (cell.problem, [name for name in cell.implementations if not peers.is_peer(name)])
        for cell in todo
        if comparison.prepared(cell)
    ]
    try:
        for problem, records in measure_all(
            jobs,
            [session.torch_device],
            policy=comparison.preparing,
            processes=options.prepare,
            lane=comparison.lane,
            deadline=start + PREPARING_SHARE * (end - start),
            seed=options.seed,
        ):
            count += 1
            hung[problem.key] = [record for record in records if record.status is Status.TIMEOUT]
            for record in hung[problem.key]:
                _say(f"  {problem.key}: {record.implementation} {record.reason}")
    except MeasurementFailed as error:  # memory may be short beside the others: what is left compiles later
        _say(f"  A process that prepares could not start again: {error}")
    _say(f"Prepared {count} of {len(jobs)} problems in {time.monotonic() - start:.0f} s.")
    return hung


@dataclass(frozen=True)
class Schedule:
    """State of a run: who hung on which problem while it was prepared, and when to end (time.monotonic)."""

    hung: Mapping[str, list[Record]]
    smoke: bool
    end: float


def measure(
    comparison: Comparison, todo: list[Cell], session: Session, store: Store, schedule: Schedule
) -> list[Cell]:
    """Measure and store cells until the budget is spent; those that are left.

    Who hung on a problem while it was prepared is not tried on it again, and who hung too often on none.
    """
    hung = schedule.hung
    start = time.monotonic()
    hangs = Counter(
        (record.problem.operator, record.implementation) for one in hung.values() for record in one
    )
    for index, cell in enumerate(todo):
        now = time.monotonic()
        if now + (now - start) / max(index, 1) > schedule.end:
            return todo[index:]
        session.policy = comparison.careful if cell.careful else comparison.policy
        if schedule.smoke:
            session.policy = SMOKE
        operator, records = cell.problem.operator, list(hung.get(cell.problem.key, ()))
        tried = {record.implementation for record in records}
        names = [
            name for name in cell.implementations if name not in tried and hangs[operator, name] < MOST_HANGS
        ]
        records += session.measure(cell.problem, names)
        hangs.update((operator, one.implementation) for one in records if one.status is Status.TIMEOUT)
        stored = store.add(cell.problem, records, session)
        words, seconds = _words(stored, comparison.shown), time.monotonic() - now
        _say(f"[{index + 1}/{len(todo)} {seconds:.1f} s] {cell.problem.key}: {words}")
    return []


def _words(cell: dict[str, Any], shown: Sequence[str]) -> str:
    """A cell's figures, and whoever has no time though it takes the problem."""
    words = [f"{name} {cell['figures'][name]}" for name in shown if name in cell["figures"]]
    for name, candidate in cell["candidates"].items():
        if candidate["status"] not in ("ok", "unsupported"):
            words.append(f"{name} {candidate['status']}: {candidate['reason']}")
    return ", ".join(words)


def _lines(summaries: list[dict[str, Any]]) -> Iterator[str]:
    """One line a row: its figures, its worst cell, and what is asked of it."""
    for line in summaries:
        yield f"{line['name']}: {line['measured']} of {line['cells']}, {line['title']}"
        yield "    " + ", ".join(f"{name} {value}" for name, value in line["figures"].items())
        if worst := line.get("worst_cell"):
            yield f"    worst: {worst['key']} ({worst['winner']} against {worst['peer']})"
        for goal in line["goals"]:
            asked = f"{goal['figure']} {goal['value']}: at least {goal['least']}, aim {goal['aim']}"
            yield f"    {asked}: {goal['verdict']}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
