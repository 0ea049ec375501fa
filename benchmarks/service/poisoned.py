"""Choices after poisoned measurements: python -m benchmarks.service.poisoned.

A thousand records of three trusted tokens, of five implementations at 200 problems, and then a thousand of
another token that knows all times, through the intake of the service with its review: the slowest just faster
than the best, a time at 1/7.9 or 7.9 times what it is, failures, bytes of next to nothing. Counts how many
came through, how many of 400 choices (the fastest and the smallest at each problem) differ afterwards, and
how much slower the worst of them is by the honest times, for a token that is not trusted and for one that is.
Writes `benchmarks/results/poisoned.json`.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.common.result import write_result
from kernel_selector.db import Database
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Memory, Record, Status, Timing
from kernel_selector.service import tokens
from kernel_selector.service.ingest.intake import Intake
from kernel_selector.service.openapi.example_record import LINE
from selector import Selector

NAMES = ("torch_lstm", "hoisted", "fused", "fused_graph", "recompute")
HIDDEN = tuple(4 * (number + 1) for number in range(200))
HONEST = ("ann", "bob", "eve")
MOST_RATIO = 7.9  # just below what the review sets aside
Times = dict[tuple[int, str], float]


def main() -> None:
    """Poison, compare, print and write."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    figures = {word: poisoned(trusted=word == "trusted") for word in ("untrusted", "trusted")}
    print(json.dumps(figures, indent=2))
    print(write_result("poisoned", {"honest": len(HIDDEN) * len(NAMES), "figures": figures}))


def poisoned(*, trusted: bool) -> dict[str, float]:
    """Numbers of poisoned records and of choices that differ after them."""
    draw = random.Random(7)
    times = {(hidden, name): draw.uniform(1, 40) for hidden in HIDDEN for name in NAMES}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measured.sqlite"
        Database.open(path, create=True).close()
        tokens.create_token(path, "mallory", scopes=["measure"], trusted=trusted)
        right = {name: honest(times, place) for place, name in enumerate(HONEST)}
        if (aside := send(path, right)) > 0:
            raise SystemExit(f"{aside} honest records were set aside: expected 0, as nothing is measured so.")
        before = choices(path)
        sent = [false(draw, times, *key, number) for number, key in enumerate(times, start=1)]
        aside = send(path, {"mallory": sent})
        after = choices(path)
    others = [key for key in before if before[key][0] != after[key][0]]
    ratios = [
        times[hidden, after[hidden, objective][0]] / times[hidden, before[hidden, objective][0]]
        for hidden, objective in others
        if objective == "time"
    ]
    return {
        "sent": len(sent),
        "set_aside": aside,
        "choices": len(before),
        "other_implementation": len(others),
        "other_figures": sum(before[key] != after[key] for key in before),
        "slower_at_most": round(max(ratios, default=1.0), 3),
    }


def honest(times: Times, place: int) -> list[Record]:
    """Records of every third problem."""
    return [
        record(name, hidden, ms) for (hidden, name), ms in times.items() if hidden // 4 % len(HONEST) == place
    ]


def false(draw: random.Random, times: Times, hidden: int, name: str, number: int) -> Record:
    """A record that contradicts the times, in one of five ways."""
    ms, best = times[hidden, name], min(times[hidden, other] for other in NAMES)
    wanted = draw.choice((0.99 * best, ms / MOST_RATIO, ms * MOST_RATIO, ms, None))
    peak = draw.choice((1, 2**20, 2**30)) if wanted == ms else None
    return record(name, hidden, wanted, peak=peak, number=number)


def record(name: str, hidden: int, ms: float | None, *, peak: int | None = None, number: int = 0) -> Record:
    """A record of an LSTM layer on a probed H200, with counted bytes; without a time of one that crashed."""
    timing = None if ms is None else Timing(p20_ms=ms, p50_ms=ms, p80_ms=ms, samples=9)
    first, item = Record.from_json(LINE), registry.implementation("lstm", name)
    problem = registry.operator("lstm").problem(hidden=hidden, batch=32)
    work = item.work(problem)
    held = int(work.saved_bytes)
    memory = Memory(
        peak_bytes=peak or held + int(work.moved_bytes),
        held_bytes=min(held, peak or held),
        workspace_bytes=0,
        kept_argument_bytes=0,
    )
    return replace(
        first,
        problem=problem,
        implementation=name,
        implementation_version=item.version,
        status=Status.OK if timing else Status.CRASHED,
        reason="" if timing else "signal 11",
        measured_at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number),
        forward=timing,
        forward_backward=timing,
        memory=memory if timing else None,
    )


def send(path: Path, records: dict[str, list[Record]]) -> int:
    """Send each author's records; returns how many were set aside."""
    selector = Selector(path, shipped=False)
    intake = Intake(selector)
    receipts = [intake.take([one.to_json() for one in found], name) for name, found in records.items()]
    intake.close()
    selector.close()
    return sum(len(receipt.quarantined) for receipt in receipts)


def choices(path: Path) -> dict[tuple[int, str], tuple[str, float | None, int | None]]:
    """The fastest and the smallest implementation at each problem, with its figures."""
    selector, found = Selector(path, shipped=False), {}
    for hidden in HIDDEN:
        for objective in ("time", "memory"):
            one = selector.choose("lstm", hidden=hidden, batch=32, device="h200", objective=objective)
            found[hidden, objective] = one.implementation, one.time_ms, one.memory_bytes
    selector.close()
    return found


if __name__ == "__main__":
    main()
