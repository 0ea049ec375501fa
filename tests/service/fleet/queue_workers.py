"""Workers in processes of their own, which measure nothing and take a moment for it: to be killed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from kernel_selector.kernels.contract import (
    Device,
    Environment,
    GateResult,
    Memory,
    Problem,
    Record,
    Status,
    Timing,
)
from kernel_selector.service.fleet import worker as workers
from kernel_selector.service.fleet.launch import Source, queue_of
from kernel_selector.service.fleet.queue import Assignment

DEVICE = Device(name="Test processor", kind="cpu", host="test, 2 cores")
SOFTWARE = Environment(
    python="3.12",
    torch="2.13",
    triton=None,
    cuda=None,
    cudnn=None,
    driver=None,
    threads=1,
    system="test",
)
VERSION = "0123456789ab"
TIMING = Timing(p20_ms=1.0, p50_ms=1.01, p80_ms=1.02, samples=9)


class PretendedSession:
    """Takes `seconds` for each measurement, more or less."""

    def __init__(self, seconds: float) -> None:
        self.device = DEVICE
        self.environment = SOFTWARE
        self.seconds = seconds

    def measure(self, problem: Problem, implementations: Sequence[str]) -> Iterator[Record]:
        """A record of each implementation."""
        for name in implementations:
            time.sleep(self.seconds * random.uniform(0.5, 1.5))
            yield Record(
                problem=problem,
                implementation=name,
                implementation_version=VERSION,
                device=DEVICE,
                environment=SOFTWARE,
                policy="quick",
                status=Status.OK,
                gate=GateResult(passed=True, worst_error_ratio=0.5),
                measured_at=datetime.now(UTC),
                forward=TIMING,
                forward_backward=TIMING,
                memory=Memory(peak_bytes=3, held_bytes=2, workspace_bytes=1),
            )

    def close(self) -> None:
        """Nothing is open."""


def all_of_them(assignment: Assignment) -> list[str]:
    """The implementations that the job names."""
    return list(assignment.implementations or ())


def drain(source: Source, name: str, lease_s: float, seconds: float) -> None:
    """Work until all tasks have ended."""
    workers.IDLE_S = 0.2
    # what there is would have to be imported, torch with it, by each process that replaces a killed one
    Assignment.missing = all_of_them  # type: ignore[method-assign]
    with queue_of(source) as queue:
        worker = workers.Worker(queue, lambda _: PretendedSession(seconds), name=name, lease_s=lease_s)
        worker.run(until_empty=True)


def start(context: Any, *arguments: Any) -> Any:
    """A process that drains the queue."""
    process = context.Process(target=drain, args=arguments)
    process.start()
    return process
