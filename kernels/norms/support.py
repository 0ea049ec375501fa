"""Refusals that the implementations of the norms share, decided from plain values."""

from __future__ import annotations

from ..contract import Device, Problem
from .launch import MOST_FEATURES, MOST_ROWS

LEAST_TRITON = (8, 0)


def refused_by_triton(problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, old GPUs, float64, and rows too wide for registers."""
    if device.kind != "cuda":
        return "Triton compiles for GPUs, and this device is none"
    if device.compute_capability is not None and device.compute_capability < LEAST_TRITON:
        return "needs compute capability 8.0 or later, for bfloat16 and asynchronous copies"
    if problem["dtype"] == "float64":
        return "computes in float32 inside, which is not float64"
    if problem["hidden"] > MOST_FEATURES:
        return (
            f"keeps whole rows in registers, which {problem['hidden']} features exceed ({MOST_FEATURES} fit)"
        )
    if problem["rows"] > MOST_ROWS:
        return f"counts rows with 32 bits, and takes at most {MOST_ROWS}"
    return None


def refused_from_output(problem: Problem) -> str | None:
    """Refuses rows of one feature: their gradients are what is left of a difference of equal numbers."""
    if problem["hidden"] == 1:
        return "of one feature a norm leaves nothing but its sign, from which no gradient can be had"
    return None
