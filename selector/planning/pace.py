"""Slowdown of layers in a model that runs without a pause, against their times measured alone.

Matrix products draw the most power. At a device's limit its clocks go down: from 1.98 to 1.72 GHz on an
H200, the mean of 48 looks at training steps that drew 600 to 700 W. What computes takes longer then: matrix
products, and attention that never writes its weights, which is bound by its instructions. Memory has a clock
of its own: what moves bytes takes as long as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem

from ..cost_model.features.roofline import matmul_rate
from .layer_costs import Figures

# by a device's key, of the time that products take at the rate that was measured alone, and of attention's:
# 1.98 / 1.72 GHz - 1
LONGER: Mapping[str, float] = {"nvidia-h200": 0.15}
AT_THE_CLOCK = ("warpgroup", "fused", "torch_sdpa", "sdpa_cudnn", "sdpa_flash")  # of attention


def in_a_model(figures: Figures, problem: Problem, name: str, device: Device) -> Figures:
    """The figures of one layer as one of many; the same for a device of which this is not known."""
    longer = LONGER.get(device.key)
    if longer is None or not device.matmul_flops_per_s:
        return figures
    computing_ms = _computing_ms(figures, problem, name, device)
    share = longer * computing_ms / figures.device_ms if figures.device_ms else 0.0
    return replace(
        figures, device_ms=figures.device_ms * (1 + share), forward_ms=figures.forward_ms * (1 + share)
    )


def _computing_ms(figures: Figures, problem: Problem, name: str, device: Device) -> float:
    """How much of a layer's time goes by the clock: all of such attention, else what the products take."""
    if problem.operator == "attention" and name in AT_THE_CLOCK:
        return figures.device_ms
    flops = registry.implementation(problem.operator, name).work(problem).flops
    return min(1e3 * flops / matmul_rate(device, problem["dtype"]), figures.device_ms)
