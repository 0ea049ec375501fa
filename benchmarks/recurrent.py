"""LSTM, GRU and vanilla RNN side by side: what users have against the best of ours.

    python -m benchmarks.recurrent --device cuda:0 --budget 9m --commit HASH
    python -m benchmarks.recurrent --device cuda:0 --budget 9m --commit HASH --resume
    python -m benchmarks.recurrent --smoke

Every candidate of a problem passes the gate in float64 first and is then timed in turns with the others,
launched by the host and as a CUDA graph, with cold caches. Compiled kernels are brought into their caches
by several processes at once before anything is timed. Each finished problem is stored at once in
`recurrent_<device>.json`, beside those of earlier runs; with --resume, what is there of the same
implementations is not measured again. --shard 1/4 takes every fourth problem, into a file of its own;
--join puts such files together. Needs torch and the standard library alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks._recurrent_rows import ROWS, Cell, cells, small
from benchmarks._recurrent_store import Store
from benchmarks._result import RESULTS, current_commit
from benchmarks._sessions import measure_all
from kernel_selector.kernels.contract import Record, Status
from kernel_selector.kernels.measure import COMPARE, ONCE, Session, default_torch_device
from kernel_selector.kernels.measure.sweeps import parse_seconds

CAREFUL = replace(
    COMPARE, name="compare carefully", max_samples=100, candidate_budget_ms=150, graph_forward=True
)
SMOKE = replace(COMPARE, name="smoke", min_samples=2, max_samples=2, warmup_ms=0)
PREPARING_SHARE = 0.4  # of the budget, at most
MOST_HANGS = 3  # of an implementation: each costs a minute


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, print and store it. The exit code: 0, or 3 where the budget left some out."""
    options = _parser().parse_args(arguments)
    if options.smoke and not options.results:
        options.results = Path(tempfile.mkdtemp(prefix="recurrent-"))
    folder = options.results or RESULTS
    if options.join:
        return _join(folder, options.join)
    end = time.monotonic() + parse_seconds(options.budget)
    rows = [small(row) for row in ROWS] if options.smoke else list(ROWS)
    device = "cpu" if options.smoke else options.device or default_torch_device()
    with Session(device, seed=options.seed) as session:
        key = session.device.key
        store = Store(folder, _name(key, options.shard), rows=rows)
        store.load(_files({folder} if options.smoke else {folder, RESULTS}, key))
        chosen = [row for row in rows if not options.rows or row.name in options.rows]
        wanted = cells(chosen, without=options.skip, loops=device == "cpu")
        todo = [cell for cell in _share(wanted, options.shard) if not (options.resume and store.holds(cell))]
        _say(f"{session.device.name}: {len(todo)} problems to measure, {len(store.cells)} stored")
        if todo:
            store.start(session, todo, options.commit or current_commit())
            hung = _prepare(todo, session, options, end)
            todo = _measure(todo, session, store, hung=hung, smoke=options.smoke, end=end)
    print(*_lines(store.summaries()), sep="\n")
    if store.cells:
        print(store.write())
    if todo:
        _say(f"The budget is spent: {len(todo)} problems are left. Run the same with --resume.")
    return 3 if todo else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    names = ", ".join(row.name for row in ROWS)
    processes = min(8, len(os.sched_getaffinity(0)) // 2)
    add = parser.add_argument
    add("--device", help="cpu or cuda:0 (default: the GPU if there is one)")
    add("--budget", default="9m", help="start no problem that would end later (default: 9m)")
    add("--commit", help="what is measured, where there is no repository to ask")
    add("--rows", nargs="+", metavar="NAME", choices=[row.name for row in ROWS], help=f"of {names}")
    add("--skip", nargs="+", default=[], metavar="NAME", help="implementations to leave out")
    add("--shard", type=_shard, metavar="i/n", help="every n-th problem, from the i-th on")
    add("--resume", action="store_true", help="skip what the result files hold")
    add("--results", type=Path, metavar="DIR", help=f"where to store (default: {RESULTS.name}/)")
    add("--join", metavar="DEVICE", help="put all files of a device (nvidia-h200) together, and stop")
    add("--prepare", type=int, default=processes, metavar="N", help=f"processes (default: {processes})")
    add("--seed", type=int, default=0, help="of inputs and parameters (default: 0)")
    add("--smoke", action="store_true", help="tiny problems on the CPU, into a temporary folder")
    return parser


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not 1 <= int(index) <= int(count):
        raise ValueError
    return int(index), int(count)


def _name(key: str, shard: tuple[int, int] | None) -> str:
    return f"recurrent_{key}" + (".{}-of-{}".format(*shard) if shard else "")


def _files(folders: Iterable[Path], key: str) -> list[Path]:
    """Every result file of a device, whole and in shards."""
    return [file for folder in folders for file in sorted(folder.glob(f"recurrent_{key}.*json"))]


def _join(folder: Path, key: str) -> int:
    store = Store(folder, _name(key, None))
    files = _files({folder}, key)
    store.load(files)
    if not store.cells:
        _say(f"{folder} has no result of {key}.")
        return 2
    path = store.write()
    for file in files:
        if file != path:
            file.unlink()
    print(*_lines(store.summaries()), path, sep="\n")
    return 0


def _share(found: list[Cell], shard: tuple[int, int] | None) -> list[Cell]:
    return found[shard[0] - 1 :: shard[1]] if shard else found


def _prepare(
    todo: list[Cell], session: Session, options: argparse.Namespace, end: float
) -> dict[str, list[Record]]:
    """Have kernels compiled, in several processes; who hung, by problem. On CPUs there is nothing to do."""
    hung: dict[str, list[Record]] = defaultdict(list)
    if session.torch_device == "cpu" or not options.prepare:
        return hung
    start, count = time.monotonic(), 0
    for problem, records in measure_all(
        [(cell.problem, cell.implementations) for cell in todo],
        session.torch_device,
        policy=ONCE,
        processes=options.prepare,
        deadline=start + PREPARING_SHARE * (end - start),
        seed=options.seed,
    ):
        count += 1
        hung[problem.key] = [record for record in records if record.status is Status.TIMEOUT]
        for record in hung[problem.key]:
            _say(f"  {problem.key}: {record.implementation} {record.reason}")
    _say(f"Prepared {count} of {len(todo)} problems in {time.monotonic() - start:.0f} s.")
    return hung


def _measure(
    todo: list[Cell],
    session: Session,
    store: Store,
    *,
    hung: Mapping[str, list[Record]],
    smoke: bool,
    end: float,
) -> list[Cell]:
    """Measure and store cells until the budget is spent; those that are left.

    Who hung on a problem while it was prepared is not tried on it again, and who hung too often on none.
    """
    start = time.monotonic()
    hangs = Counter(
        (record.problem.operator, record.implementation) for one in hung.values() for record in one
    )
    for index, cell in enumerate(todo):
        now = time.monotonic()
        if now + (now - start) / max(index, 1) > end:
            return todo[index:]
        session.policy = SMOKE if smoke else CAREFUL if cell.careful else COMPARE
        operator, records = cell.problem.operator, list(hung.get(cell.problem.key, ()))
        tried = {record.implementation for record in records}
        names = [
            name for name in cell.implementations if name not in tried and hangs[operator, name] < MOST_HANGS
        ]
        records += session.measure(cell.problem, names)
        hangs.update((operator, one.implementation) for one in records if one.status is Status.TIMEOUT)
        stored = store.add(cell.problem, records, session)
        seconds = time.monotonic() - now
        _say(f"[{index + 1}/{len(todo)} {seconds:.1f} s] {cell.problem.key}: {_words(stored)}")
    return []


def _words(cell: dict[str, Any]) -> str:
    """A cell's figures, and whoever has no time though it takes the problem."""
    shown = ("eager", "graph", "best", "us", "winner", "peer")
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


if __name__ == "__main__":
    sys.exit(main())
