"""Roofline terms: seconds of counted operations, bytes and launches on a device."""

from __future__ import annotations

from collections.abc import Callable

from kernel_selector.kernels.contract import Device, Problem, Work

from ...errors import NoMeasurements


def missing_rates(device: Device) -> str | None:
    """Reason why the physical terms of a device cannot be computed, or None when they can."""
    if device.copy_bytes_per_s and device.launch_us and device.matmul_flops_per_s:
        return None  # quickly: a neighbour's time is scaled by it for each implementation
    missing = [
        name for name in ("copy_bytes_per_s", "launch_us", "matmul_flops_per_s") if not getattr(device, name)
    ]
    return f"{', '.join(missing)} of {device.name} not known"


def matmul_rate(device: Device, dtype: str) -> float:
    """Operations per second of matrix products; of float32, else of any dtype, where this one is unknown."""
    rates = device.matmul_flops_per_s
    return rates.get(dtype) or rates.get("float32") or next(iter(rates.values()))


def terms_seconds(work: Work, problem: Problem, device: Device) -> tuple[float, float, float]:
    """Seconds for the operations, for moving the bytes and for the launches.

    Raises NoMeasurements when the device's rates are not known.
    """
    return _terms(device, problem["dtype"])(work.flops, work.moved_bytes, work.launches)


def _terms(device: Device, dtype: str) -> Callable[[float, float, float], tuple[float, float, float]]:
    """What gives these seconds by operations, bytes moved and launches, for problems of a dtype."""
    copy_bytes_per_s, launch_us = rates_of(device)
    flops_per_s = matmul_rate(device, dtype)
    return lambda flops, moved_bytes, launches: (
        flops / flops_per_s,
        moved_bytes / copy_bytes_per_s,
        launches * launch_us * 1e-6,
    )


def rates_of(device: Device) -> tuple[float, float]:
    """Bytes per second of a copy and microseconds of a launch. Raises NoMeasurements for unknown ones."""
    problem_with = missing_rates(device)
    if problem_with:
        raise NoMeasurements(
            f"{problem_with}: measure on the device first (`selector profile lstm --count 60`)."
        )
    assert device.copy_bytes_per_s is not None
    assert device.launch_us is not None
    return device.copy_bytes_per_s, device.launch_us


def estimating(device: Device, dtype: str) -> Callable[[float, float, float], float]:
    """A function of operations, bytes and launches that gives the sum of their seconds, as `_terms` does.

    It is the plain count of operations and bytes where the device's rates are not known.
    """
    if missing_rates(device):
        return lambda flops, moved_bytes, _launches: flops + moved_bytes
    terms = _terms(device, dtype)
    return lambda flops, moved_bytes, launches: sum(terms(flops, moved_bytes, launches))
