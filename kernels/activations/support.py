"""Refusals that several implementations share, decided from plain values."""

from __future__ import annotations

from ..contract import Device, Problem

TRITON_CAPABILITY = (8, 0)
FEWEST = 1024  # elements among which those by the lowest point, 2 % off, are few


def refused_by_triton(problem: Problem, device: Device) -> str | None:
    """Reason why Triton's kernels refuse a problem, or None: CPUs, old GPUs, float64."""
    if device.kind != "cuda":
        return "Triton compiles for GPUs, and this device is none"
    if device.compute_capability is not None and device.compute_capability < TRITON_CAPABILITY:
        return "needs compute capability 8.0 or later, for bfloat16"
    if problem["dtype"] == "float64":
        return "computes in float32 inside, which is not float64"
    return None


def refused_by_rounding(problem: Problem) -> str | None:
    """Reason why a derivative that is fitted to the output is too inexact for a problem, or None."""
    if problem["dtype"] == "float32":
        return "the derivative is fitted to 5e-4, a hundred times what the gate allows in float32"
    elements = problem["elements"] if "elements" in problem.as_dict else problem["rows"] * problem["inner"]
    if elements < FEWEST:
        return (
            f"rounding of y is up to 2 % of the derivative at the lowest point, which {elements} elements do "
            f"not average: takes {FEWEST} or more"
        )
    return None
