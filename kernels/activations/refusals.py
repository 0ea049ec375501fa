"""What the implementations refuse alike, from plain values."""

from __future__ import annotations

from ..contract import Device, Problem

TRITON_CAPABILITY = (8, 0)
COMPILER_CAPABILITY = (7, 0)


def refused_by_triton(problem: Problem, device: Device) -> str | None:
    """Why Triton's kernels refuse a problem: CPUs, old GPUs, float64."""
    if device.kind != "cuda":
        return "Triton compiles for GPUs, and this device is none"
    if device.compute_capability is not None and device.compute_capability < TRITON_CAPABILITY:
        return "needs compute capability 8.0 or later, for bfloat16"
    if problem["dtype"] == "float64":
        return "computes in float32 inside, which is not float64"
    return None


def refused_by_rounding(problem: Problem) -> str | None:
    """Why a derivative that is fitted to the output is not taken for a problem."""
    if problem["dtype"] == "float32":
        return "the derivative is fitted to 5e-4, a hundred times what the gate allows in float32"
    return None


def refused_by_compiler(device: Device) -> str | None:
    """Why torch.compile is not taken on a device."""
    if device.kind != "cuda":
        return "torch.compile needs a C++ compiler for processors, which is not taken for granted"
    if device.compute_capability is not None and device.compute_capability < COMPILER_CAPABILITY:
        return "torch.compile makes kernels for GPUs of compute capability 7.0 or later"
    return None
