"""The clock of GPUs, on a device of paper."""

from __future__ import annotations

import os
import time

import pytest
import torch

from kernel_selector.kernels.measure import clock as clocks
from kernel_selector.kernels.measure.clock import (
    HOST_MARGIN,
    KEPT_PROBES,
    LONGEST_SPIN_MS,
    PROBES,
    SLOW,
    SPIN_CYCLES_A_MS,
    EventClock,
    Pace,
)
from kernel_selector.kernels.measure.workload import Mark, Run


class Paper:
    """A device that takes as long as it is told, what it was asked for, in order, and its host's time."""

    def __init__(self, device_ms: float) -> None:
        self.device_ms = device_ms
        self.now_ns = 0
        self.asked: list[str] = []
        self.spun: list[int] = []

    def spin(self, cycles: int) -> None:
        self.asked.append("spin")
        self.spun.append(cycles)


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Paper:
    """Events of a run are `device_ms` apart."""
    device = Paper(0.0)

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            device.asked.append("record")

        def elapsed_time(self, _later: Event) -> float:
            return device.device_ms

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: device.asked.append("wait"))
    monkeypatch.setattr(torch.cuda, "_sleep", device.spin)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: device.now_ns)
    monkeypatch.setattr(time, "perf_counter", lambda: device.now_ns / 1e9)
    return device


def host(paper: Paper, milliseconds: float) -> Run:
    """What takes so long to launch, by a time of its own: a busy machine's would be longer."""

    def run(_index: int, mark: Mark) -> None:
        paper.now_ns += round(milliseconds * 1e6)
        mark()

    return run


def test_a_time_of_the_device(paper: Paper) -> None:
    paper.device_ms = 0.25
    assert EventClock("cpu", 64).burst(host(paper, 1.0), 0, 2) == [(0.25, 0.25)] * 2
    assert paper.asked == ["record"] * 6 + ["wait"]


@pytest.mark.parametrize(("device_ms", "host_ms"), [(50.0, 0.5), (0.01, 0.5)])
def test_apart_the_longer_share_counts(paper: Paper, device_ms: float, host_ms: float) -> None:
    paper.device_ms = device_ms
    clock = EventClock("cpu", 64)
    clock.apart = True
    for laps in clock.burst(host(paper, host_ms), 0, 3):
        assert len(laps) == 2
        assert set(laps) == {max(device_ms, host_ms)}


@pytest.mark.parametrize(("margin", "counts"), [(0.5, True), (0.9, True), (1.1, False), (9.0, False)])
def test_a_host_far_faster_than_the_device_does_not_count(paper: Paper, margin: float, counts: bool) -> None:
    paper.device_ms = margin * HOST_MARGIN * 0.5
    clock = EventClock("cpu", 64)
    assert clock.host_counts
    clock.burst(host(paper, 0.5), 0, 3)
    assert clock.host_counts  # as far as is known: it is not timed
    clock.apart = True
    clock.burst(host(paper, 0.5), 0, 3)
    assert clock.host_counts is counts


def test_apart_the_device_begins_when_the_host_is_through(paper: Paper) -> None:
    clock = EventClock("cpu", 64)
    clock.apart = True
    laps = clock.burst(host(paper, 0.5), 0, 3)
    # the first run of a burst says how long the host takes; each waits for the one before
    once = ["record"] * 3
    assert paper.asked == ["wait", *once, "wait", "spin", *once, "wait", "spin", *once, "wait"]
    assert paper.spun[0] == int(SPIN_CYCLES_A_MS * laps[0][-1])
    assert paper.spun[1] == int(SPIN_CYCLES_A_MS * min(laps[0][-1], laps[1][-1]))


def test_nothing_waits_for_a_long_host(paper: Paper) -> None:
    """More launches than a queue holds would wait for the device that waits for them."""
    clock = EventClock("cpu", 64)
    clock.apart = True
    clock.burst(host(paper, LONGEST_SPIN_MS + 0.1), 0, 3)
    assert not paper.spun


class Cores:
    """A host whose cores take what they are told, in seconds; the thread is where it was last put."""

    def __init__(self, **took: float) -> None:
        self.took = {int(core.strip("c")): seconds for core, seconds in took.items()}
        self.here, self.allowed = min(self.took), set(self.took)
        self.visits = 0
        self.next: list[float] = []  # of single probes

    def __call__(self) -> float:
        return self.next.pop(0) if self.next else self.took[self.here]

    def put(self, _thread: int, allowed: set[int]) -> None:
        self.allowed = allowed
        if self.here not in allowed:
            (self.here,) = allowed
            self.visits += 1


def paced(cores: Cores, monkeypatch: pytest.MonkeyPatch) -> Pace:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _thread: cores.allowed)
    monkeypatch.setattr(os, "sched_setaffinity", cores.put)
    monkeypatch.setattr(clocks, "PATIENCE_S", 0.01)
    pace = Pace(cores)
    pace.settle()
    return pace


def test_at_first_all_cores_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(c0=1.9, c1=1.0, c2=1.4)
    paced(cores, monkeypatch)
    assert cores.here == 1
    assert cores.allowed == {0, 1, 2}  # threads that begin here may run anywhere


def test_a_slow_core_is_left_for_a_fast_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(c0=1.0, c1=1.9, c2=1.9, c3=1.9)
    pace = paced(cores, monkeypatch)
    assert cores.here == 0
    cores.took |= {0: 1.9, 2: SLOW * 0.99}
    assert not pace.calm()
    pace.settle()
    assert cores.here == 2
    assert pace.calm()


def test_a_fast_core_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(c0=1.0, c1=1.0)
    pace = paced(cores, monkeypatch)
    before = cores.visits
    cores.took[cores.here] = SLOW * 0.99
    cores.next = [5.0] * (PROBES - 1)  # one slow probe, or two, are none of the core
    pace.settle()
    assert pace.calm()
    assert cores.visits == before


def test_where_all_are_slow_the_fastest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(c0=1.0, c1=1.0, c2=1.0)
    pace = paced(cores, monkeypatch)
    cores.took = {0: 2.1, 1: 2.0, 2: 2.2}
    pace.settle()
    assert cores.here == 1
    assert pace.calm()  # it is as it was when it was taken: nobody waits for better


def test_a_host_that_stays_slow_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(c0=1.0, c1=1.0)
    pace = paced(cores, monkeypatch)
    monkeypatch.setattr(clocks, "PATIENCE_S", 0.0)
    cores.took = {0: 2.0, 1: 2.0}
    looked = []
    for _ in range(KEPT_PROBES + 1):
        before = cores.visits
        pace.settle()
        looked.append(cores.visits > before)
    assert looked == [True] * KEPT_PROBES + [False]


def test_only_a_clock_that_times_the_host_waits_for_it(paper: Paper) -> None:
    clock = EventClock("cpu", 64)
    clock.settle()
    assert not paper.asked
    assert clock.calm()
    clock.apart = True
    clock.settle()
    cores = len(os.sched_getaffinity(0))
    assert paper.asked == ["wait"] * PROBES * cores
    clock.calm()
    assert paper.asked == ["wait"] * PROBES * (cores + 1)
