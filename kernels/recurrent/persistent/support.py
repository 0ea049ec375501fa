"""Refusals of the persistent kernel, decided without a GPU."""

from __future__ import annotations

from ...contract import Device, Problem
from .. import operator
from ..module import cell_of
from .plan import Shape, refused_plan

CAPABILITY = (9, 0)


def refused(problem: Problem, device: Device) -> str | None:
    """Reason why kernel.cu cannot compute a problem of lstm, gru or rnn on a device, or None."""
    if device.compute_capability != CAPABILITY:
        return "its matrix instructions are those of compute capability 9.0 alone"
    if problem["dtype"] not in ("float16", "bfloat16"):
        return f"it keeps weights and states in 16 bits, and so does not compute in {problem['dtype']}"
    if problem["hidden"] % 2:
        return f"it moves units in pairs, and hidden={problem['hidden']} is odd"
    if problem.operator == "lstm" and (problem["projection"] or problem["peepholes"]):
        return "it has neither projections nor peepholes"
    if device.multiprocessors is None:
        return "all of its CTAs have to run at once, and the device's multiprocessors are not known"
    sizes = problem["hidden"], problem["batch"], operator.directions(problem)
    for backward in (False, True)[: 1 + (problem["mode"] == "training")]:
        reason = refused_plan(Shape(cell_of(problem), *sizes, backward), device.multiprocessors)
        if reason is not None:
            return reason
    return None
