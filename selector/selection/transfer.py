"""Estimates carried over from a GPU that was measured to one that was not.

A time is multiplied by the ratio of the seconds that an implementation's counted operations, bytes and
launches take at the two devices' rates. What is known of an H200, carried so to an H100 of another host (1115
problems of all operators, `python -m benchmarks.selection.transfer`): times are off by 13 % (median), and
choices lose 2.0 % against the fastest, where the default loses 64 %. To another compute capability times are
off by more: those of torch's own, carried from an H200 and measured by others, by 17 to 51 % (medians of 400:
linear layers, products, norms and GELU in float32 on an A100, NeuSight 6945927), 31 % (linear layers in
float16 on an RTX A6000) and 33 % (in bfloat16 on an RTX 4090); 73 to 100 % of them are in their intervals.
How good choices are there nobody has measured, so that a switch away from the default must gain a quarter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, Work

from ..cost_model.estimate import Tier
from ..cost_model.features.roofline import matmul_rate
from .evidence import OTHER_MACHINE

SOURCE = "transfer"
OF_ANOTHER = (
    "Measured on another processor, {}, since nothing comparable is known of this one: "
    "`selector profile --operator all` measures it."
)


class Doubt(NamedTuple):
    """Error of a time carried over to another device, and the least gain of a switch by such times."""

    wider: float  # an interval at both ends
    least_gain: float  # of a switch away from the default


SAME_CAPABILITY = Doubt(2**0.2, 0.05)  # nine of ten times are inside
OTHER_CAPABILITY = Doubt(2**0.8, 0.25)


def alike(device: Device, measured: Iterable[Device]) -> list[Device]:
    """The measured GPUs, those of the same compute capability first, then by the speed of their memory; of a
    processor all other processors.

    There are none for a GPU whose rates are not known.
    """
    if device.kind == "cpu":
        return [one for one in measured if one.kind == "cpu" and one.key != device.key]
    found = [
        one
        for one in measured
        if one.key != device.key and one.kind == device.kind == "cuda" and _rates(one) & _rates(device)
    ]
    return sorted(found, key=lambda one: (not _same(one, device), abs(math.log(_copy_ratio(device, one)))))


def apart(device: Device, other: Device) -> tuple[bool, float, float]:
    """Distance of two devices: by kind, compute capability, and speed of their memory."""
    mine, theirs = device.compute_capability, other.compute_capability
    capability = math.inf if mine is None or theirs is None else abs(_number(mine) - _number(theirs))
    is_known = device.copy_bytes_per_s and other.copy_bytes_per_s
    speed = abs(math.log(_copy_ratio(device, other))) if is_known else math.inf
    return other.kind != device.kind, capability, speed


def _number(capability: tuple[int, int]) -> int:
    return 10 * capability[0] + capability[1]


def carried(tier: Tier, problem: Problem, device: Device, origin: Device) -> Tier:
    """The tier of another device as one of `device`; without estimates as it was.

    Times of processors stay as they are: what was a little faster on one is not on another.
    """
    if not tier.estimates:
        return tier
    if origin.kind == "cpu":
        noisier = {name: one.timed(1.0, 1.0, OTHER_MACHINE) for name, one in tier.estimates.items()}
        caveats = (OF_ANOTHER.format(origin.name), *tier.caveats)
        return tier._replace(estimates=noisier, caveats=caveats, origin=origin)
    works = registry.implementations(problem.operator)
    doubt = SAME_CAPABILITY if _same(device, origin) else OTHER_CAPABILITY
    estimates = {
        name: estimate.timed(_ratio(works[name].work(problem), problem["dtype"], device, origin), *doubt)
        for name, estimate in tier.estimates.items()
    }
    nothing = f"nothing comparable of {problem.operator} was measured on {device.name}"
    words = f"Carried over from {origin.name}: {nothing}."
    return tier._replace(source=SOURCE, estimates=estimates, caveats=(words, *tier.caveats), origin=origin)


def _same(device: Device, other: Device) -> bool:
    """Whether the same kernels run on both."""
    return device.compute_capability == other.compute_capability


def _ratio(work: Work, dtype: str, device: Device, origin: Device) -> float:
    """Seconds on `device` over those on `origin`: products and bytes at their rates, launches equal.

    Products of a dtype that one of them has no rate of take the rate of float32 there.
    """
    launches = work.launches * (origin.launch_us or 0.0) * 1e-6
    both = _rates(device) & _rates(origin)
    mine, theirs = (
        work.flops / _rate(one, dtype, both) + work.moved_bytes / (one.copy_bytes_per_s or 1.0) + launches
        for one in (device, origin)
    )
    return mine / theirs if theirs else 1.0


def _rate(device: Device, dtype: str, common: set[str]) -> float:
    """Operations per second of products, of a dtype in common where float32 is not in common either."""
    if "float32" not in common and dtype not in common:
        dtype = min(common)
    return matmul_rate(device, dtype)


def _rates(device: Device) -> set[str]:
    """The dtypes whose rate of matrix products is known, none where that of the memory is not."""
    return set(device.matmul_flops_per_s) if device.copy_bytes_per_s else set()


def _copy_ratio(device: Device, other: Device) -> float:
    return (device.copy_bytes_per_s or 1.0) / (other.copy_bytes_per_s or 1.0)
