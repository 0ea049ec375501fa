"""`python -m kernels.measure lstm hidden=64,128 batch=8`: measure a grid, write JSON lines."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import torch

from .. import registry
from ..contract import MeasurementFailed, SelectorError
from ..contract.record import LAUNCHED
from .environment import default_torch_device
from .jobs import InvalidJobs, Job, read_jobs, share
from .log import Log, say
from .parallel import Fleet, default_judges
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
  {PROGRAM} --problems plan.jsonl --device all --policy steady --budget 9m --output records.jsonl

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
    operators = ", ".join(registry.operators())
    policies = " or ".join(POLICIES)
    add = parser.add_argument
    add("operator", nargs="?", help=f"one of: {operators}")
    add("grid", nargs="*", metavar="name=value,...", help="hyperparameters")
    add("--problems", type=Path, metavar="FILE", help="what to measure, as selector profile --plan writes it")
    add("--shard", metavar="i/n", help="every n-th problem, from the i-th on")
    add("--device", help="cpu, cuda:0, cuda:0,cuda:1 or all GPUs (default: the first GPU if there is one)")
    add("--policy", default="quick", help=f"{policies} (default: quick)")
    add("--regime", default=LAUNCHED, help="launched, or compiled with neighbours (default: launched)")
    add("--implementations", metavar="a,b", help="only these (default: all)")
    add("--output", "--resume", type=Path, metavar="FILE", help="append to FILE, skip what it holds")
    add("--budget", metavar="10m", help="start no problem that would end later than this")
    add("--judges", type=int, metavar="N", help="processes a GPU that compile and check before it times")
    add("--timeout", metavar="60s", help="limit of each stage of a candidate")
    add("--seed", default="0", help="of inputs and parameters (default: 0)")
    return parser


def _sweep(options: argparse.Namespace) -> None:
    start = time.monotonic()
    chosen = policy(options.policy).in_regime(options.regime)
    if options.timeout:
        chosen = replace(chosen, timeout_s=parse_seconds(options.timeout))
    end = start + (parse_seconds(options.budget) if options.budget else float("inf"))
    seed = parse_seed(options.seed)
    if options.output:
        check_output(options.output)
    jobs = share(_jobs(options), options.shard)
    finished = Finished.read(options.output) if options.output else Finished()
    devices = _devices(options.device)
    judges = default_judges(devices) if options.judges is None else max(0, options.judges)
    # who times finds what the judges compiled: compilers of its own would start on the cores meanwhile
    threads = 1 if judges and "cpu" not in devices else None
    with _lines(options.output) as output, ExitStack() as stack:
        sessions = [
            stack.enter_context(Session(one, policy=chosen, seed=seed, threads=threads)) for one in devices
        ]
        missing = {job: finished.missing(job.problem, _versions(job), sessions[0]) for job in jobs}
        todo = [Job(job.problem, tuple(names)) for job, names in missing.items() if names]
        log = Log(todo, end=end)
        say(f"{_named(sessions)}: {len(todo)} problems to measure, {len(jobs) - len(todo)} already done")
        fleet = Fleet(sessions=sessions, judges=min(judges, len(todo)), end=end)
        with closing(fleet.run(todo)) as steps:
            for step in steps:
                if step.record is not None:
                    print(step.record.to_json(), file=output, flush=True)
                log.show(step)
        log.finish(fleet)


def _jobs(options: argparse.Namespace) -> list[Job]:
    """What is asked for, in a file or as a grid, with the implementations that are wanted of it."""
    only = options.implementations.split(",") if options.implementations else None
    if options.problems and options.operator:
        raise InvalidJobs(f"--problems and {options.operator}: give a file or an operator, not both.")
    if not options.problems and not options.operator:
        raise InvalidJobs("Nothing to measure: give an operator, or a file after --problems. Try --help.")
    if options.problems:
        jobs = read_jobs(options.problems)
        return [
            Job(job.problem, tuple(name for name in job.implementations if only is None or name in only))
            for job in jobs
        ]
    operator = registry.operator(options.operator)
    problems = parse_grid(operator, options.grid)
    names = tuple(only or registry.implementations(operator.name))
    for name in names:
        registry.implementation(operator.name, name)
    return [Job(problem, names) for problem in problems]


def _versions(job: Job) -> dict[str, str]:
    known = registry.implementations(job.problem.operator)
    return {name: known[name].version for name in job.implementations}


def _devices(text: str | None) -> list[str]:
    if text == "all":
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())] or ["cpu"]
    return list(dict.fromkeys(text.split(","))) if text else [default_torch_device()]


def _named(sessions: Sequence[Session]) -> str:
    count = f"{len(sessions)} x " if len(sessions) > 1 else ""
    return count + sessions[0].device.name


@contextmanager
def _lines(file: Path | None) -> Iterator[TextIO]:
    if file is None:
        yield sys.stdout
    else:
        with file.open("a") as handle:
            yield handle


if __name__ == "__main__":
    sys.exit(main())
