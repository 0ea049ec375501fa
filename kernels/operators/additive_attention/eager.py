"""Torch operations as users write them: Linear, tanh, Linear(H, 1), softmax, product; keeps the tanh."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from ...contract import Device, Problem, Work
from . import _operator
from ._equations import eager
from ._module import Attention


def unsupported(_asked: Problem, _device: Device) -> str | None:
    """Refuses nothing."""
    return None


def build(problem: Problem) -> nn.Module:
    """The module for a problem."""
    return Attention(problem, eager)


def work(problem: Problem) -> Work:
    """The tanh of B * T * S * H elements is written, read and kept; with a layer norm its input as well."""
    least = _operator.work(problem)
    if problem["score"] != "additive":
        return replace(least, launches=least.launches + (4 if problem["lengths"] else 0))
    training = problem["mode"] == "training"
    wide = _operator.elements(problem) * _operator.element_bytes(problem)
    norm = bool(problem["layer_norm"])
    passes = (11 + 6 * norm) if training else (4 + 2 * norm)  # each reads or writes all of it
    return replace(
        least,
        moved_bytes=least.moved_bytes + passes * wide,
        saved_bytes=least.saved_bytes + (1 + norm) * wide if training else 0,
        launches=(22 + 3 * norm) if training else 7 + norm,
        steps=(14 + 2 * norm) if training else 6 + norm,
    )
