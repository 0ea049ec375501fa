"""`python -m kernels.measure lstm hidden=64,128 batch=8`: measure a grid, write JSON lines."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from .. import registry
from ..contract import MeasurementFailed, Problem, Record, SelectorError
from .environment import default_torch_device
from .policies import POLICIES, policy
from .session import Session
from .sweeps import Finished, check_output, parse_grid, parse_seconds, parse_seed

PROGRAM = f"python -m {__package__}"
DESCRIPTION = "Measure every implementation of an operator on this machine, for a grid of hyperparameters."
EPILOG = f"""\
Each candidate is first checked against the equations in float64, then timed; it runs in a child
process, so that a crash or a hang costs one record. One JSON line a candidate goes to stdout, or is
appended to --output; progress goes to stderr. Run the same command with the same --output again to go
on where it stopped.

examples:
  {PROGRAM} lstm hidden=64,128 batch=8
  {PROGRAM} lstm hidden=256 batch=1,32 seq=50 dtype=bfloat16 mode=inference --policy thorough
  {PROGRAM} lstm hidden=64,128,256 batch=1,16,64 --output records.jsonl --budget 10m

hyperparameters that are not given take their defaults; a wrong name lists the right ones.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 when measuring failed, 2 for a mistake in the question, 130 after Ctrl-C."""
    options = None
    try:
        options = _parser().parse_intermixed_args(arguments)
        _sweep(options)
    except (SelectorError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # whoever read stdout is gone; Python must not complain when it flushes it at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1 if isinstance(error, MeasurementFailed) else 2
    except KeyboardInterrupt:
        again = " Run the command again to go on." if options and options.output else ""
        print(f"\nStopped. Finished records are written.{again}", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("operator", help=f"one of: {', '.join(registry.operators())}")
    parser.add_argument("grid", nargs="*", metavar="name=value,...", help="hyperparameters")
    parser.add_argument("--device", help="cpu or cuda:0 (default: the GPU if there is one)")
    parser.add_argument("--policy", default="quick", help=f"{' or '.join(POLICIES)} (default: quick)")
    parser.add_argument("--implementations", metavar="a,b", help="only these (default: all)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="append to FILE, skip what it holds")
    parser.add_argument("--budget", metavar="10m", help="start no problem that would end later than this")
    parser.add_argument("--timeout", metavar="60s", help="limit of each stage of a candidate")
    parser.add_argument("--seed", default="0", help="of inputs and parameters (default: 0)")
    return parser


def _sweep(options: argparse.Namespace) -> None:
    operator = registry.operator(options.operator)
    problems = parse_grid(operator, options.grid)
    chosen = policy(options.policy)
    if options.timeout:
        chosen = replace(chosen, timeout_s=parse_seconds(options.timeout))
    budget_s = parse_seconds(options.budget) if options.budget else None
    seed = parse_seed(options.seed)
    if options.output:
        check_output(options.output)
    names = options.implementations.split(",") if options.implementations else None
    versions = {
        name: registry.implementation(operator.name, name).version
        for name in names or registry.implementations(operator.name)
    }
    finished = Finished.read(options.output) if options.output else Finished()
    device = options.device or default_torch_device()
    with (
        _lines(options.output) as output,
        Session(device, policy=chosen, seed=seed) as session,
    ):
        missing = {problem: finished.missing(problem, versions, session) for problem in problems}
        todo = {problem: names for problem, names in missing.items() if names}
        _measure(session, todo, output, budget_s=budget_s, skipped=len(problems) - len(todo))


@contextmanager
def _lines(file: Path | None) -> Iterator[TextIO]:
    if file is None:
        yield sys.stdout
    else:
        with file.open("a") as handle:
            yield handle


def _measure(
    session: Session,
    todo: dict[Problem, list[str]],
    output: TextIO,
    *,
    budget_s: float | None,
    skipped: int,
) -> None:
    _say(f"{session.device.name}: {len(todo)} problems to measure, {skipped} already done")
    start, counts = time.monotonic(), Counter[str]()
    for index, (problem, names) in enumerate(todo.items()):
        elapsed = time.monotonic() - start
        pace = elapsed / index if index else 0.0
        if budget_s is not None and elapsed + pace > budget_s:
            _say(f"The budget is spent: {len(todo) - index} problems are left.")
            break
        left = f", about {pace * (len(todo) - index):.0f} s left" if index else ""
        _say(f"[{index + 1}/{len(todo)}{left}] {problem.key}")
        for record in session.measure(problem, names):
            print(record.to_json(), file=output, flush=True)
            counts[record.status.value] += 1
            _say(f"    {_summary(record)}")
    tally = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "nothing"
    _say(f"Measured in {time.monotonic() - start:.1f} s: {tally}.")


def _summary(record: Record) -> str:
    total = record.total
    text = f"{total.p50_ms:.4g} ms ({total.samples} samples)" if total else record.reason
    return f"{record.implementation:24} {record.status.value:14} {text}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
