"""Times that a GPU takes at least, by counted work and its rates, below which no prediction goes."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, Work

from .estimate import Estimate


def no_shorter(estimates: Mapping[str, Estimate], problem: Problem, device: Device) -> Mapping[str, Estimate]:
    """Predictions for implementations of a problem, of a GPU none below what it takes at least.

    Errors at one problem have much in common: where most are too short, all of them become longer. Without
    the quarter of an operator's problems with most work 18 to 46 % of what is predicted of these is too short
    for norms, activations and feed-forward layers, by which times are off by 15 to 34 % (median), and so by
    5 to 17 %.
    """
    if device.kind != "cuda" or not estimates:
        return estimates
    known = registry.implementations(problem.operator)
    longer = {
        name: max(least_ms(known[name].work(problem), device) / one.time_ms, 1.0) if one.time_ms else 1.0
        for name, one in estimates.items()
    }
    common = median(longer.values())
    return {name: one.timed(max(longer[name], common), 1.0, 0.0) for name, one in estimates.items()}


def least_ms(work: Work, device: Device) -> float:
    """Milliseconds that a GPU takes at least: the longer of what bytes take, and operations at the highest
    rate of any dtype, since recurrent layers compute products of float32 in fewer bits.

    Of 35,000 times of an H100 and an H200 that are not the host's one in 3,000 is shorter by 5 % or more.
    """
    flops_per_s = max(device.matmul_flops_per_s.values())
    return 1e3 * max(work.flops / flops_per_s, from_memory(work, device) / (device.copy_bytes_per_s or 1.0))


def from_memory(work: Work, *devices: Device) -> float:
    """Bytes that memory moves: where each L2 cache holds what a step does, as the weights of a time loop,
    those of one step, since the next ones find it there.
    """
    steps = max(work.steps, 1.0)
    a_step = work.moved_bytes / steps
    return a_step if a_step <= min(one.l2_bytes or 0 for one in devices) else work.moved_bytes
