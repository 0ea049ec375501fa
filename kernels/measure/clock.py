"""Bursts of timed runs on a device: host clock on a CPU, events and a flushed cache on a GPU."""

from __future__ import annotations

import time
from functools import partial
from typing import Protocol

import torch

from .workload import Run

Laps = tuple[float, ...]  # ms since the start of a run: at its mark, at its end


class Clock(Protocol):
    """Times `count` runs one after the other; the indices of their input sets count up from `first`.

    `flushes` is how often the cache is written over before a run, where it is at all.
    """

    flushes: int

    def burst(self, run: Run, first: int, count: int) -> list[Laps]:
        """The laps of each run."""
        ...


class HostClock:
    """For CPUs. Cold caches come from rotating the input sets; nothing is flushed."""

    flushes = 0

    def burst(self, run: Run, first: int, count: int) -> list[Laps]:
        """The laps of each run."""
        now = time.perf_counter_ns
        laps: list[Laps] = []
        stamps: list[int] = []

        def mark() -> None:
            stamps.append(now())

        for index in range(first, first + count):
            stamps.clear()
            mark()
            run(index, mark)
            mark()
            start, *others = stamps
            laps.append(tuple((stamp - start) / 1e6 for stamp in others))
        return laps


class EventClock:
    """For GPUs. Before each run a buffer larger than the L2 cache is written: weights and inputs are cold.

    Runs of a burst are queued without waiting, as in a training loop, and the write before a run gives
    the host a start: so a time is that of the device, or of the host's launches where those take longer.
    """

    def __init__(self, torch_device: str, l2_bytes: int) -> None:
        self.flushes = 1
        self._flush = torch.empty(2 * l2_bytes, dtype=torch.uint8, device=torch_device)

    def burst(self, run: Run, first: int, count: int) -> list[Laps]:
        """The laps of each run."""
        rows: list[list[torch.cuda.Event]] = []
        event = partial(torch.cuda.Event, enable_timing=True)
        for index in range(first, first + count):
            spare = [event() for _ in range(3)]
            used: list[torch.cuda.Event] = []

            def mark(spare: list[torch.cuda.Event] = spare, used: list[torch.cuda.Event] = used) -> None:
                used.append(spare[len(used)])
                used[-1].record()

            for _ in range(self.flushes):
                self._flush.zero_()
            mark()
            run(index, mark)
            mark()
            rows.append(used)
        torch.cuda.synchronize()
        return [tuple(start.elapsed_time(other) for other in others) for start, *others in rows]
