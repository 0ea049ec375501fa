"""Bursts of timed runs on a device: host clock on a CPU, events and a flushed cache on a GPU."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Protocol

import torch

from .workload import Run

Laps = tuple[float, ...]  # ms since the start of a run: at its mark, at its end

# a device spins half as long again as the host takes, at up to 2 GHz
SPIN_CYCLES_A_MS = 1.5 * 2e6
LONGEST_SPIN_MS = 2.0  # a launch takes some 2 us, and the queue of a device holds 1,024

# On a shared machine with H200s all that the host did took 1.4 to 2.4 times as long for one to three seconds
# now and then: one problem in twenty was timed in such a phase, and its small layers looked slow
SLOW = 1.25
PATIENCE_S = 3.0
PROBE_LAUNCHES = 8  # some 30 us
PROBES = 3  # the fastest counts: the first has cold caches
KEPT_PROBES = 9  # the host may become slower for good: half of these are waited for at most


class Clock(Protocol):
    """Times `count` runs one after the other; the indices of their input sets count up from `first`.

    `apart`: the host's share of a run and the device's are timed apart, where there are two.
    """

    apart: bool

    def settle(self) -> None:
        """Wait while the host is in a slow phase, where that can be told."""
        ...

    def burst(self, run: Run, first: int, count: int) -> list[Laps]:
        """The laps of each run."""
        ...


class HostClock:
    """For CPUs. Cold caches come from rotating the input sets; nothing is flushed."""

    apart = False

    def settle(self) -> None:
        """Nothing: here the host is what is timed."""

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

    Where these are about equal it depends on the start which of them is timed. With `apart` the device
    begins when the host is through: it spins so long, by the least that the host has taken in the burst.
    A lap is then the longer of the host's, by its own clock, and the device's, by its events. The first
    run of a burst finds no figure, and the host may be too long for the device's queue: then the device
    begins at once.
    """

    def __init__(self, torch_device: str, l2_bytes: int) -> None:
        self.apart = False
        self._flush = torch.empty(2 * l2_bytes, dtype=torch.uint8, device=torch_device)
        self._pace = Pace(self._launches_s)

    def settle(self) -> None:
        """Wait for the host where its share is timed; see Pace."""
        if self.apart:
            self._pace.settle()

    def _launches_s(self) -> float:
        """Seconds that the host takes for a few launches, of which the device is ahead."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(PROBE_LAUNCHES):
            self._flush[:1].zero_()
        return time.perf_counter() - start

    def burst(self, run: Run, first: int, count: int) -> list[Laps]:
        """The laps of each run."""
        runs, host_ms = [], 0.0
        spin: Callable[[int], None] = torch.cuda._sleep
        for index in range(first, first + count):
            if self.apart:
                torch.cuda.synchronize()
            self._flush.zero_()
            if 0 < host_ms <= LONGEST_SPIN_MS:
                spin(int(SPIN_CYCLES_A_MS * host_ms))
            marks = _Marks()
            marks()
            run(index, marks)
            marks()
            runs.append(marks)
            if self.apart:
                host_ms = min(host_ms or math.inf, marks.of_host()[-1])
        torch.cuda.synchronize()
        if not self.apart:
            return [marks.of_device() for marks in runs]
        return [tuple(map(max, marks.of_host(), marks.of_device())) for marks in runs]


class Pace:
    """Whether the host is about as fast as it was of late, by what `probe` takes, in seconds."""

    def __init__(self, probe: Callable[[], float]) -> None:
        self._probe = probe
        self._recent: deque[float] = deque(maxlen=KEPT_PROBES)

    def settle(self) -> None:
        """Wait until it is, for PATIENCE_S at most."""
        end = time.monotonic() + PATIENCE_S
        while (took := self._fastest()) > SLOW * self._usual(took) and time.monotonic() < end:
            time.sleep(PATIENCE_S / 300)
        self._recent.append(took)

    def _fastest(self) -> float:
        return min(self._probe() for _ in range(PROBES))

    def _usual(self, first: float) -> float:
        return median(self._recent) if self._recent else first


class _Marks:
    """When a run passed its marks, on the device and on the host."""

    def __init__(self) -> None:
        event = partial(torch.cuda.Event, enable_timing=True)
        self._spare = [event() for _ in range(3)]
        self._passed: list[torch.cuda.Event] = []
        self._stamps: list[int] = []

    def __call__(self) -> None:
        self._passed.append(self._spare[len(self._passed)])
        self._passed[-1].record()
        self._stamps.append(time.perf_counter_ns())

    def of_host(self) -> Laps:
        """Laps by the host's clock; what the device does meanwhile is not waited for."""
        start, *others = self._stamps
        return tuple((stamp - start) / 1e6 for stamp in others)

    def of_device(self) -> Laps:
        """Laps by events, once the device is through."""
        start, *others = self._passed
        return tuple(start.elapsed_time(other) for other in others)
