"""The frontier, where more memory never trains slower; and what is refused by the name of its argument."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import selector
from selector import InvalidRequest
from selector.planning.pareto import frontier
from selector.planning.plan import Plan
from selector.planning.planner import Planner
from selector.planning.training_setup import Training

MIB = 2**20
FOUND = Plan(
    model="ten layers",
    device="a device",
    batch=8,
    accumulate=1,
    limit_bytes=MIB,
    layers=(),
    recomputed_blocks=0,
    step_ms=1.0,
    device_ms=1.0,
    host_ms=1.0,
    optimizer_ms=0.0,
    samples_per_s=8000.0,
    peak_bytes=MIB,
    memory={},
    caveats=(),
    snapshot="",
)


def searched(limit_bytes: int) -> Plan:
    """Something slower within more memory, as a search that tries some batches may find."""
    slower = replace(FOUND, samples_per_s=1e9 / limit_bytes)
    return replace(slower, default=replace(slower, batch=limit_bytes))


def test_a_plan_that_fits_into_less_fits_into_more() -> None:
    planner = Mock(Planner)
    planner.plan.side_effect = searched
    points = frontier(planner, [2 * MIB, MIB])
    assert [point.limit_bytes for point in points] == [MIB, 2 * MIB]
    assert [point.samples_per_s for point in points] == [1e9 / MIB] * 2
    assert [point.default_batch for point in points] == [MIB] * 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: selector.plan((nn.ReLU(), torch.ones(2, 3)), "cpu", "1GiB"), "ReLU has no parameters"),
        (lambda: selector.plan("gpt2", "cpu", "1GiB", training={"accumulate": 2}), "expected a Training"),
        (
            lambda: selector.pareto("gpt2", "cpu", memory_limits="8GiB"),
            "memory_limits='8GiB': expected a list",
        ),
        (lambda: Training(exclude="torch_compile"), "exclude='torch_compile': expected a tuple"),
        (lambda: Plan.from_dict({"batch": 3}), "expected what Plan.to_dict gave"),
        (lambda: Plan.from_dict({**FOUND.to_dict(), "more": 1}), "more"),
    ],
)
def test_arguments_of_other_kinds_are_refused(call: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        call()
