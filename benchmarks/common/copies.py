"""Copies on a device, timed as candidates are: what a kernel that moves as many bytes can be held against."""

from __future__ import annotations

import statistics
from functools import lru_cache

import torch

from kernel_selector.kernels.measure.clock import Clock, EventClock, HostClock
from kernel_selector.kernels.measure.graphs import capture
from kernel_selector.kernels.measure.workload import Mark, Run

SAMPLES = 15


@lru_cache(maxsize=256)
def copy_ms(moved_bytes: int, torch_device: str, l2_bytes: int) -> float:
    """Median milliseconds of a copy: half of the bytes read, half written; on a GPU as a CUDA graph."""
    source = torch.ones(max(moved_bytes // 2, 1), dtype=torch.uint8, device=torch_device)
    target = torch.empty_like(source)

    def run(_index: int, _mark: Mark) -> None:
        target.copy_(source)

    clock: Clock = HostClock()
    timed: Run = run
    if torch_device != "cpu":
        clock, timed = EventClock(torch_device, l2_bytes), capture(run)
    laps = clock.burst(timed, 0, 2 * SAMPLES)[SAMPLES:]
    return statistics.median(one[-1] for one in laps)
