"""Estimates carried over from a device that was measured to one like it that was not.

A time is multiplied by the ratio of the seconds that an implementation's counted operations and bytes take at
the two devices' rates. What is known of an H200, carried so to an H100 of another host (369 problems of all
operators, `python -m benchmarks.selection.transfer`): times are off by 11 % (median), and choices lose 1.9 %
against the fastest, where the default loses 68 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, Work

from ..cost_model.estimate import Tier
from .evidence import OTHER_MACHINE

SOURCE = "transfer"
WIDER = 2**0.2  # an interval at both ends: nine of ten times are inside then
LEAST_GAIN = 0.05  # of a switch away from the default
OF_ANOTHER = (
    "Measured on another processor, {}, since nothing comparable is known of this one: "
    "`selector profile --operator all` measures it."
)


def alike(device: Device, measured: Iterable[Device]) -> list[Device]:
    """The measured GPUs of the same compute capability, those whose memory is nearest in speed first; of a
    processor all others.

    There are none for a GPU whose rates are not known.
    """
    if device.kind == "cpu":
        return [one for one in measured if one.kind == "cpu" and one.key != device.key]
    found = [
        one
        for one in measured
        if one.key != device.key
        and one.compute_capability is not None
        and one.compute_capability == device.compute_capability
        and _rates(one) & _rates(device)
    ]
    return sorted(found, key=lambda one: abs(math.log(_copy_ratio(device, one))))


def carried(tier: Tier, problem: Problem, device: Device, origin: Device) -> Tier:
    """The tier of another device as one of `device`; without estimates as it was.

    Times of processors stay as they are: what was a little faster on one is not on another.
    """
    if not tier.estimates:
        return tier
    if origin.kind == "cpu":
        noisier = {name: one.timed(1.0, 1.0, OTHER_MACHINE) for name, one in tier.estimates.items()}
        return tier._replace(estimates=noisier, caveats=(OF_ANOTHER.format(origin.name), *tier.caveats))
    works = registry.implementations(problem.operator)
    estimates = {
        name: estimate.timed(
            _ratio(works[name].work(problem), problem["dtype"], device, origin), WIDER, LEAST_GAIN
        )
        for name, estimate in tier.estimates.items()
    }
    words = f"Carried over from {origin.name}: nothing of {problem.operator} was measured on {device.name}."
    return tier._replace(source=SOURCE, estimates=estimates, caveats=(words, *tier.caveats))


def _ratio(work: Work, dtype: str, device: Device, origin: Device) -> float:
    """Seconds on `device` over those on `origin`, of products at their rates and of bytes at theirs."""
    known = _rates(device) & _rates(origin)
    of = dtype if dtype in known else min(known)
    mine, theirs = (
        work.flops / one.matmul_flops_per_s[of] + work.moved_bytes / (one.copy_bytes_per_s or 1.0)
        for one in (device, origin)
    )
    return mine / theirs if theirs else 1.0


def _rates(device: Device) -> set[str]:
    """The dtypes whose rate of matrix products is known, none where that of the memory is not."""
    return set(device.matmul_flops_per_s) if device.copy_bytes_per_s else set()


def _copy_ratio(device: Device, other: Device) -> float:
    return (device.copy_bytes_per_s or 1.0) / (other.copy_bytes_per_s or 1.0)
