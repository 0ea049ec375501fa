"""A measuring session that replays the made-up machine instead of running anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from kernel_selector.kernels.contract import Problem, Record
from kernel_selector.kernels.measure import QUICK
from tests.selector import replay


class ReplaySession:
    """`measured` lists what was asked for; `interrupt_after` records, Ctrl-C is pressed."""

    def __init__(self, interrupt_after: int | None = None) -> None:
        self.device = replay.HERE
        self.environment = replay.SOFTWARE
        self.policy = QUICK
        self.measured: list[tuple[str, str]] = []
        self.interrupt_after = interrupt_after

    def measure(self, problem: Problem, implementations: Sequence[str]) -> Iterator[Record]:
        for name in implementations:
            if len(self.measured) == self.interrupt_after:
                raise KeyboardInterrupt
            self.measured.append((problem.key, name))
            yield replace(replay.record(problem, name), measured_at=datetime.now(UTC))
