"""Refusals and counts that the Triton implementations share, from plain values."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...contract import Device, Problem, Work
from .. import operator
from ..work import Loop

LEAST_CAPABILITY = (8, 0)
MOST_STEP_ELEMENTS = 2**31  # kernels address one time step with 32 bits, and the steps with 64


def refused_by_triton(problem: Problem, device: Device) -> str | None:
    """Refuses CPUs, old GPUs, float64, projections and peepholes."""
    if device.kind != "cuda":
        return "Triton compiles for GPUs, and this device is none"
    if device.compute_capability is not None and device.compute_capability < LEAST_CAPABILITY:
        return "needs compute capability 8.0 or later, for bfloat16 and asynchronous copies"
    if problem["dtype"] == "float64":
        return "computes in float32 inside, which is not float64"
    if problem.operator == "lstm" and (problem["projection"] or problem["peepholes"]):
        return "has kernels for neither projections nor peepholes"
    if problem["batch"] * problem["hidden"] * 4 * operator.directions(problem) >= MOST_STEP_ELEMENTS:
        return "addresses the gates of one time step with 32 bits, and these are too many"
    return None


@dataclass(frozen=True, kw_only=True)
class TapeLoop(Loop):
    """Counts of a loop over a tape, whose outputs are in the memory that backward reads."""

    def work(self, problem: Problem) -> Work:
        """The counts of a loop whose two directions write side by side: nothing is joined, or held twice."""
        counted = super().work(problem)
        if not counted.saved_bytes:
            return counted
        cells = problem["layers"] * operator.directions(problem)
        states = problem["seq"] * problem["batch"] * problem["hidden"] * cells
        return replace(counted, saved_bytes=states * self.held * operator.ELEMENT_BYTES[problem["dtype"]])
