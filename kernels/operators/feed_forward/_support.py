"""Refusals of the implementations, decided from plain values."""

from __future__ import annotations

from ...activations.support import refused_by_rounding, refused_by_triton
from ...contract import Device, Problem


def refused_between(problem: Problem, device: Device) -> str | None:
    """Reason for a refusal on GPUs, which take Triton kernels, or None; others take torch's operations."""
    return refused_by_triton(problem, device) if device.kind == "cuda" else None


def refused_by_fit(problem: Problem) -> str | None:
    """Reason why a slope that is fitted to the output is refused, or None."""
    if problem["activation"] == "relu":
        return "needs no bits for relu: `fused` keeps its output alone, which says the slope"
    return refused_by_rounding(problem)


def refused_by_codes(problem: Problem) -> str | None:
    """Reason why 8-bit codes of the activation's input are refused, or None."""
    if problem["dtype"] != "bfloat16":
        return f"8-bit codes err by 0.7 %, which the gate allows in bfloat16 but not in {problem['dtype']}"
    if problem["activation"] == "relu":
        return "small inputs become zero in 8-bit codes, where the slope of relu jumps"
    return None
