"""The clock of GPUs, on a device of paper."""

from __future__ import annotations

import time

import pytest
import torch

from kernel_selector.kernels.measure import clock as clocks
from kernel_selector.kernels.measure.clock import (
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


class Host:
    """A host whose launches take what it is told, in seconds."""

    def __init__(self, *took: float) -> None:
        self.took = list(took)
        self.probes = 0

    def __call__(self) -> float:
        self.probes += 1
        return self.took.pop(0) if len(self.took) > 1 else self.took[0]


def test_a_slow_host_is_waited_for() -> None:
    host = Host(1.0)
    pace = Pace(host)
    pace.settle()
    host.took = [*(PROBES * [SLOW * 1.1]), *(PROBES * [2.0]), SLOW * 0.99]
    before = host.probes
    pace.settle()
    assert host.probes == before + 3 * PROBES


def test_one_slow_probe_is_none_of_the_host() -> None:
    host = Host(1.0)
    pace = Pace(host)
    pace.settle()
    host.took = [5.0, 5.0, 1.0]
    pace.settle()
    assert host.probes == 2 * PROBES


def test_a_host_that_stays_slow_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "PATIENCE_S", 0.03)
    host = Host(1.0)
    pace = Pace(host)
    pace.settle()
    host.took = [2.0]
    waited = [_waits(pace, host) for _ in range(4)]
    assert waited == [True, True, False, False]  # until half of what is kept is slow


def _waits(pace: Pace, host: Host) -> bool:
    before = host.probes
    pace.settle()
    return host.probes > before + PROBES


def test_only_a_clock_that_times_the_host_waits_for_it(paper: Paper) -> None:
    clock = EventClock("cpu", 64)
    clock.settle()
    assert not paper.asked
    clock.apart = True
    clock.settle()
    assert paper.asked == ["wait"] * PROBES
