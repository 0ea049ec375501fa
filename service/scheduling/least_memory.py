"""Memory that every implementation of a layer takes, counted from its reference and from their work."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from selector.planning.layer_costs import ROWS
from selector.workloads.model import ELEMENT_BYTES

MOST_LAYERS = 4096  # whose parameters are kept counted


@lru_cache(maxsize=MOST_LAYERS)
def parameter_bytes(problem: Problem) -> int:
    """Bytes of a layer's parameters in its dtype; 0 for an imported operator, of which nothing is known."""
    if problem.operator not in registry.operators():
        return 0
    given = problem.as_dict
    one_row = {name: 1 for name in ROWS if name in given}  # parameters are the same at any number of them
    return _counted(registry.operator(problem.operator).problem({**given, **one_row}))


@lru_cache(maxsize=MOST_LAYERS)
def _counted(problem: Problem) -> int:
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
    return parameters + max(parameters, min(_kept_bytes(problem, name) for name in names))


def may_fit(problem: Problem, names: Iterable[str], memory_bytes: int) -> bool:
    """Whether `least_bytes` is no more than that; counts the bytes of no more implementations than needed."""
    parameters = parameter_bytes(problem)
    room = memory_bytes - parameters
    if not parameters or problem["mode"] != "training":
        return room >= 0
    return parameters <= room and any(_kept_bytes(problem, name) <= room for name in names)


def _kept_bytes(problem: Problem, name: str) -> int:
    return round(registry.implementation(problem.operator, name).work(problem).saved_bytes)
