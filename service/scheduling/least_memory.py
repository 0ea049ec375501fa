"""Memory that every implementation of a layer takes, counted from its reference and from their work."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from selector.workloads.model import ELEMENT_BYTES

MOST_PROBLEMS = 4096  # whose count is kept


@lru_cache(maxsize=MOST_PROBLEMS)
def parameter_bytes(problem: Problem) -> int:
    """Bytes of a layer's parameters in its dtype; 0 for an imported operator, of which nothing is known."""
    if problem.operator not in registry.operators():
        return 0
    import torch

    with torch.device("meta"):  # shapes alone
        elements = sum(parameter.numel() for parameter in registry.reference(problem).parameters())
    return elements * ELEMENT_BYTES[problem["dtype"]]


def least_bytes(problem: Problem, names: Iterable[str]) -> int:
    """Bytes below which no implementation of these names computes a layer, without inputs and outputs.

    In training that is the parameters, and what is kept for backward or their gradients, whichever is more:
    the gradients come while what is kept goes.
    """
    parameters = parameter_bytes(problem)
    if not parameters or problem["mode"] != "training":
        return parameters
    kept = (registry.implementation(problem.operator, name).work(problem).saved_bytes for name in names)
    return parameters + max(parameters, round(min(kept)))
