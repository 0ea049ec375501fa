"""Quality of choices of layers compiled with neighbours, where others of them alone were measured so.

    python -m benchmarks.selection.compiled [--device NAME] [--database URL]

The problems of each operator that were measured compiled with neighbours on a device are parted into FOLDS.
Each fold is asked about, with regime="compiled" and among the implementations that were measured, by what is
known without it: the other folds, all launched layers, and their cost models. Beside it stand the loss of the
choice of launched layers, by the same evidence, and of torch's own layer, which is left to the compiler.
Writes `benchmarks/results/compiled_choices_<device>.json`. Needs no GPU.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.result import RESULTS, write_result
from benchmarks.selection.sealed_sets import asked, contests
from kernel_selector.db import Database, models
from kernel_selector.db import records as stored
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Record
from kernel_selector.kernels.contract.record import COMPILED, LAUNCHED
from selector.selection.query import Query
from selector.selection.selector import Selector
from selector.selection.shipped import unpacked
from selector.training.verdicts import Contest, Verdict, quality, summed_up, verdict

FOLDS = 5


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask, judge, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="NVIDIA H200")
    parser.add_argument("--database", help="URL or path (default: the measurements that ship)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    given = parser.parse_args(arguments)
    found: dict[str, list[Verdict]] = defaultdict(list)
    with Database.open(given.database or unpacked()) as database:
        device = _device(database, given.device)
        for name in registry.operators():
            for regime, verdicts in _of_operator(database, name, device).items():
                found[regime] += verdicts
    payload: dict[str, Any] = {"of_device": device.to_dict(), "folds": FOLDS}
    for regime, verdicts in found.items():
        payload[regime] = summed_up(verdicts)
        print(regime, payload[regime]["all"])
    left = [one.default_slowdown for one in found[COMPILED] if one.default_slowdown]
    payload["left_to_the_compiler"] = vars(quality(left))
    print("left to the compiler", payload["left_to_the_compiler"])
    print(write_result(f"compiled_choices_{device.key}", payload, torch_device="cpu", folder=given.results))


def _device(database: Database, name: str) -> Device:
    """The device of a name. Exits where nothing was measured on it compiled with neighbours."""
    with database.read() as connection:
        found = {one.name: one for one in stored.devices(connection)}
        if name not in found:
            raise SystemExit(f"--device {name!r}: expected one of {', '.join(map(repr, found))}.")
        if not any(True for _ in stored.find(connection, device_key=found[name].key, regime=COMPILED)):
            raise SystemExit(
                f"Nothing was measured compiled with neighbours on {name}: "
                "`selector profile OPERATOR ... --regime compiled` does."
            )
    return found[name]


def _of_operator(database: Database, name: str, device: Device) -> dict[str, list[Verdict]]:
    """Verdicts on an operator's problems by the regime that was asked for, fold by fold."""
    with database.read() as connection:
        compiled, launched = (
            list(stored.find(connection, operator=name, device_key=device.key, regime=regime))
            for regime in (COMPILED, LAUNCHED)
        )
        model = models.latest(connection, operator=name)
    verdicts: dict[str, list[Verdict]] = {COMPILED: [], LAUNCHED: []}
    for fold, others in folds(compiled):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "others.sqlite"
            with Database.open(place, create=True) as known, known.write() as connection:
                stored.add(connection, [*launched, *others])
                if model is not None:
                    models.add(connection, model=model)
            found = contests(fold, device)
            with Database.open(place) as known:
                selector = Selector(known, frozen=True, shipped=False)
                for regime, so_far in verdicts.items():
                    choices = asked(selector, [_query(one, regime) for one in found])
                    so_far += list(map(verdict, found, choices))
    return verdicts


def folds(records: Sequence[Record]) -> Iterator[tuple[list[Record], list[Record]]]:
    """The records of each fold of the problems, and all others."""
    problems = {key: number for number, key in enumerate(sorted({one.problem.key for one in records}))}
    for fold in range(min(FOLDS, len(problems))):
        parts: tuple[list[Record], list[Record]] = [], []
        for one in records:
            parts[problems[one.problem.key] % FOLDS != fold].append(one)
        yield parts


def _query(contest: Contest, regime: str) -> Query:
    """The question in a regime, among what was measured."""
    return replace(contest.query, among=tuple(contest.times), regime=regime)


if __name__ == "__main__":
    main()
