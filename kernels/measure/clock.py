"""Bursts of timed runs on a device: host clock on a CPU, events and a flushed cache on a GPU."""

from __future__ import annotations

import math
import os
import random
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from .workload import Run

Laps = tuple[float, ...]  # ms since the start of a run: at its mark, at its end

# a device spins half as long again as the host takes, at up to 2 GHz
SPIN_CYCLES_A_MS = 1.5 * 2e6
LONGEST_SPIN_MS = 2.0  # a launch takes some 2 us, and the queue of a device holds 1,024
# times that a host may be slower than it was before a device waits for it: a slow core took 1.4 to 2.4 times
HOST_MARGIN = 4.0

# Other work on a shared host slows down one core of it and not the next. On a machine with two H200s and 32
# cores a loop of Python took 22 us or, for a fraction of a second up to half a minute, 42; launches took 1.4
# times as long then, and one of two processes was slow while the other was not. Small layers took 1.3 to 1.8
# times as long in one visit as in another; on fast cores alone a visit differed from another by 3 %, not 26
SLOW = 1.15
PATIENCE_S = 0.3  # some 25 visits to each of 32 cores
PROBE_LAUNCHES, PROBE_STEPS = 8, 600  # some 90 us
PROBES = 3  # the fastest counts: the first has cold caches
KEPT_PROBES = 64  # the host may become slower for good: so many are looked for a faster core at most


class Clock(Protocol):
    """Times `count` runs one after the other; the indices of their input sets count up from `first`.

    `apart`: the host's share of a run and the device's are timed apart, where there are two. `host_counts`:
    a slow host would have made some lap of the last burst longer.
    """

    apart: bool
    host_counts: bool

    def settle(self) -> None:
        """Find a core that nobody slows down, where that can be told."""
        ...

    def calm(self) -> bool:
        """Whether the core is still so: else what was timed since is no good."""
        ...

    def burst(self, run: Run, first: int, count: int) -> list[Laps]:
        """The laps of each run."""
        ...


class HostClock:
    """For CPUs. Cold caches come from rotating the input sets; nothing is flushed."""

    apart = False
    host_counts = True

    def settle(self) -> None:
        """Does nothing: on a CPU all cores are timed."""

    def calm(self) -> bool:
        """True, as far as can be told."""
        return True

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
        self.host_counts = True
        self._flush = torch.empty(2 * l2_bytes, dtype=torch.uint8, device=torch_device)
        self._pace = Pace(self._probe_s)

    def settle(self) -> None:
        """Find a fast core where the host's share is timed; see Pace."""
        if self.apart:
            self._pace.settle()

    def calm(self) -> bool:
        """Whether it is fast still."""
        return not self.apart or self._pace.calm()

    def _probe_s(self) -> float:
        """Seconds that the host takes for a loop and for a few launches, of which the device is ahead."""
        torch.cuda.synchronize()
        seen: dict[int, int] = {}
        start = time.perf_counter()
        for step in range(PROBE_STEPS):
            seen[step % 32] = step
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
        shares = [(marks.of_host(), marks.of_device()) for marks in runs]
        self.host_counts = any(
            HOST_MARGIN * host > device for both in shares for host, device in zip(*both, strict=True)
        )
        return [tuple(map(max, *both)) for both in shares]


class Pace:
    """Keeps the calling thread on a core that is about as fast as the fastest was of late.

    `probe` gives what something takes there, in seconds. The thread stays where it is put as long as it
    does not sleep, and threads that it starts may run on any core.
    """

    def __init__(self, probe: Callable[[], float]) -> None:
        self._probe = probe
        self._recent: deque[float] = deque(maxlen=KEPT_PROBES)
        self._order = random.Random(0)

    def settle(self) -> None:
        """Visit one core after the other until one is fast; the fastest of them after PATIENCE_S."""
        if not self._recent:
            took = self._moved(enough=-math.inf, patience_s=0.0)  # a look at all of them
        elif (took := self._fastest()) > self._fast():
            took = self._moved(enough=self._fast(), patience_s=PATIENCE_S)
        self._recent.append(took)

    def calm(self) -> bool:
        """Whether the core is fast still, or no slower than when it was settled on."""
        return self._fastest() <= max(self._fast(), SLOW * self._recent[-1])

    def _moved(self, enough: float, patience_s: float) -> float:
        """Move to a core where the probe takes `enough` at most, or to the fastest; what it takes there."""
        allowed, end = os.sched_getaffinity(0), time.monotonic() + patience_s
        try:
            while True:
                visited: list[tuple[float, int]] = []
                for core in self._order.sample(sorted(allowed), len(allowed)):
                    os.sched_setaffinity(0, {core})
                    visited.append((self._fastest(), core))
                    if visited[-1][0] <= enough:
                        return visited[-1][0]
                if time.monotonic() >= end:
                    took, core = min(visited)
                    os.sched_setaffinity(0, {core})
                    return took
        finally:
            os.sched_setaffinity(0, allowed)

    def _fast(self) -> float:
        """What the probe takes at most on a fast core."""
        return SLOW * min(self._recent)

    def _fastest(self) -> float:
        return min(self._probe() for _ in range(PROBES))


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
