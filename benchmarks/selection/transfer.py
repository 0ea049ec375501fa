"""Quality of choices and times for a GPU that nothing was measured on, by measurements that were held out.

    python -m benchmarks.selection.transfer                          # each GPU of the database in turn
    python -m benchmarks.selection.transfer FILE [FILE ...]          # a GPU that the database has nothing of
    python -m benchmarks.selection.transfer --public DIR             # measurements of others

The first learns cost models from the GPUs that are left, which takes minutes, and writes
`transfer_held_out_<device>.json` for each. FILEs are records of sweeps as `python -m kernels.measure --output
FILE` writes them; the result is `transfer_<device>.json`. Each problem is asked about on the device, and is
judged by what was measured there: the choice against the fastest, times against times, and how often they are
in their intervals, which are made for nine of ten; `there` has these figures by whether the other GPU was
measured at the problem or its cost model predicts it. Of a held-out GPU all once more as after `selector
calibrate`, whose problems are not judged then. DIR has tables of what torch's own implementations and
some libraries' attention take on devices of many kinds (`linear.csv.gz`, `devices.csv.gz` and so on): each
device is foretold from the one most like it that has a time of the same problem, with rates from its data
sheet and the share of these that the others reach; the result is `transfer_public.json`. Needs no GPU.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.lines import text_of
from benchmarks.common.result import RESULTS, write_result
from benchmarks.selection import _public_times
from benchmarks.selection.sealed_sets import asked, contests
from kernel_selector.db import Database
from kernel_selector.db import records as stored
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, Record
from selector.errors import TooFewProblems
from selector.profiling.calibration import PROBLEMS, jobs_of
from selector.selection.choice import Candidate, Choice
from selector.selection.host_shares import HostShares
from selector.selection.selector import Selector
from selector.selection.shipped import unpacked
from selector.training.train import train
from selector.training.verdicts import Contest, figures, summed_up, verdict

OF_THE_DEVICE = 2.0  # times as long as the host takes: then it is the device that was timed


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask, judge, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sweeps", type=Path, nargs="*", metavar="FILE")
    parser.add_argument("--public", type=Path, metavar="DIR", help="tables of what others measured")
    parser.add_argument("--database", help="URL or path (default: the measurements that ship)")
    parser.add_argument("--device", help="the key of one GPU to hold out (default: each in turn)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    given = parser.parse_args(arguments)
    if given.public:
        found = _public_times.held_out(given.public)
        for family, judged in found.items():
            print(family, {name: one for name, one in judged.items() if name != "device"}, sep="\n  ")
        _write("transfer_public", {"families": found}, given.results)
        return
    with Database.open(given.database or unpacked()) as database:
        if given.sweeps:
            _of_sweeps(database, given.sweeps, given.results)
            return
        for device in _gpus(database, given.device):
            with tempfile.TemporaryDirectory() as folder:
                judged = _held_out(database, device, Path(folder))
            _write(f"transfer_held_out_{device.key}", judged, given.results)


def _of_sweeps(database: Database, files: Sequence[Path], results: Path) -> None:
    """Judge what is foretold of records in files. Exits where their device is in the database."""
    records = [Record.from_json(line) for file in files for line in text_of(file).splitlines()]
    device = replace(records[0].device, host="")
    with database.read() as connection:
        measured = stored.devices(connection)
    if device.key in {one.key for one in measured}:
        raise SystemExit(f"{device.name} is in the database: nothing would be carried over to it.")
    payload = {"sweeps": [file.name for file in files], **_judged(database, records, device)}
    _write(f"transfer_{device.key}", payload, results)


def _gpus(database: Database, key: str | None) -> list[Device]:
    """The GPUs to hold out. Exits where another one is not left to learn from."""
    with database.read() as connection:
        found = {one.key: one for one in stored.devices(connection) if one.kind == "cuda"}
    wanted = [found[one] for one in found if key in (None, one)]
    if not wanted or len(found) < 2:
        raise SystemExit(f"Nothing to hold out: the database has {', '.join(found) or 'no GPU'}.")
    return wanted


def _held_out(database: Database, device: Device, folder: Path) -> dict[str, Any]:
    """The figures of one GPU by what a database without it knows."""
    with Database.open(folder / "others.sqlite", create=True) as others:
        names = list(_copied(database, others, device))
        for name in names:
            with suppress(TooFewProblems):
                train(name, others)
        with database.read() as connection:
            records = [
                one for name in names for one in stored.find(connection, operator=name, device_key=device.key)
            ]
        asked_about = replace(device, host="")
        return {
            **_judged(others, records, asked_about),
            "calibrated": _calibrated(others, records, asked_about),
        }


def _calibrated(others: Database, records: Sequence[Record], device: Device) -> dict[str, Any]:
    """The same figures after what `selector calibrate` measures, without the problems of that."""
    keys = {one.problem.key: None for one in records}
    count = min(PROBLEMS, len(keys) // 2)  # some have to be left to judge
    selector = Selector(others, frozen=True, shipped=False)
    jobs = {one.problem: one.implementations for one in jobs_of(selector, device, count, keys)}
    taken = [one for one in records if one.implementation in jobs.get(one.problem, ())]
    with others.write() as connection:
        stored.add(connection, taken)
    return {
        "problems": len(jobs),
        **_judged(others, [one for one in records if one.problem not in jobs], device),
    }


def _copied(database: Database, others: Database, device: Device) -> Iterator[str]:
    """The operators with measurements of other GPUs, which are copied."""
    for name in registry.operators():
        with database.read() as connection:
            found = stored.find(connection, operator=name)
            kept = [one for one in found if one.device.kind == device.kind and one.device.key != device.key]
        if kept:
            with others.write() as connection:
                stored.add(connection, kept)
            yield name


def _judged(database: Database, records: Sequence[Record], device: Device) -> dict[str, Any]:
    """The figures of choices and of times on a device by records of it."""
    found = contests([one for one in records if _is_known(one)], device)
    selector = Selector(database, frozen=True, shipped=False)
    choices = asked(selector, [one.query for one in found])
    verdicts = list(map(verdict, found, choices))
    return {
        "of_device": device.to_dict(),
        **summed_up(verdicts),
        "times": errors(found, choices),
        "there": {
            name: {
                "choices": figures([one for one in verdicts if one.problem in part]),
                "times": errors(found, choices, part),
            }
            for name, part in _by_origin(selector, found, device).items()
        },
    }


def _by_origin(selector: Selector, found: Sequence[Contest], device: Device) -> dict[str, set[Problem]]:
    """The problems by whether the device from which times are carried over measured or predicts them."""
    parts: dict[str, set[Problem]] = defaultdict(set)
    for operator in {one.problem.operator for one in found}:
        others = selector.others(operator, device)
        known = selector.evidence(operator, others[0].key).problems if others else {}
        for one in (each.problem for each in found if each.problem.operator == operator):
            parts["measured" if one.key in known else "predicted"].add(one)
    return dict(parts)


def _write(name: str, payload: dict[str, Any], results: Path) -> None:
    for part in ("all", "times"):
        if part in payload:
            print(payload[part])
    print(write_result(name, payload, torch_device="cpu", folder=results))


def _is_known(record: Record) -> bool:
    """Whether its implementation has not been taken out since."""
    return record.implementation in registry.implementations(record.problem.operator)


def errors(
    found: Sequence[Contest], choices: Sequence[Choice], among: Container[Problem] | None = None
) -> dict[str, Any]:
    """Errors of all candidates' times, and of the device's: those of more than twice what the host takes.

    among: the problems that count, all when None.
    """
    host = HostShares((one.problem, *each) for one in found for each in one.times.items())
    pairs = [
        (contest, candidate)
        for contest, choice in zip(found, choices, strict=True)
        for candidate in choice.candidates
        if candidate.time_ms is not None and candidate.name in contest.times
        if among is None or contest.problem in among
    ]
    of_device = [
        (contest, candidate)
        for contest, candidate in pairs
        if contest.times[candidate.name] > OF_THE_DEVICE * _host_ms(host, contest.problem, candidate.name)
    ]
    return {**_errors(pairs), "of_the_device": _errors(of_device)}


def _host_ms(host: HostShares, problem: Problem, name: str) -> float:
    work = registry.implementation(problem.operator, name).work(problem)
    return host.ms(name, problem["mode"], work.launches)


def _errors(pairs: Sequence[tuple[Contest, Candidate]]) -> dict[str, Any]:
    """Relative errors, quantiles in doublings, and how often intervals hold."""
    if not pairs:
        return {"candidates": 0}
    measured = np.array([contest.times[candidate.name] for contest, candidate in pairs])
    foretold = np.array([candidate.time_ms for _, candidate in pairs])
    low, high = np.array([candidate.time_interval_ms for _, candidate in pairs]).T
    return {
        "candidates": len(pairs),
        "median_error": round(float(np.median(np.abs(foretold / measured - 1))), 4),
        "doublings": {
            f"p{share}": round(float(np.percentile(np.log2(measured / foretold), share)), 3)
            for share in (5, 50, 95)
        },
        "in_their_intervals": round(float(np.mean((low <= measured) & (measured <= high))), 4),
    }


if __name__ == "__main__":
    main()
