"""Refusals that the fused implementations share, decided from plain values."""

from __future__ import annotations

from ...contract import Device, Problem

LEAST_CAPABILITY = (8, 0)


def refused(problem: Problem, device: Device) -> str | None:
    """Refuses old GPUs, where the kernels on logits cannot be compiled; torch does their part on CPUs."""
    old = device.compute_capability is not None and device.compute_capability < LEAST_CAPABILITY
    if device.kind == "cuda" and old and problem["dtype"] != "float64":
        return "needs compute capability 8.0 or later, for bfloat16 in Triton's kernels"
    return None
