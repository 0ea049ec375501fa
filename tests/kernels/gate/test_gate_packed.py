"""The gate sees what is wrong with a packed output."""

from __future__ import annotations

import pytest
from torch import nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.gate import Gate


class Repacked(nn.LSTM):
    """nn.LSTM whose packed output is changed by `change`."""

    def __init__(self, change):
        super().__init__(24, 24)
        self.change = change

    def forward(self, x, hx):
        y, last = super().forward(x, hx)
        return self.change(y), last


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda y: y, ""),
        (lambda y: y.data, "is missing"),
        (lambda y: tuple(y)[:3], "is missing"),
        (lambda y: y._replace(sorted_indices=y.sorted_indices.flip(0)), "output[0][2] differs"),
        (lambda y: y._replace(data=y.data * 1.01), "output[0][0]: error"),
    ],
)
def test_packed_outputs_are_judged_with_their_order(change, fault):
    problem = registry.operator("lstm").problem(hidden=24, batch=5, seq=9, packed=True)
    gate = Gate(problem, "cpu")
    result = gate.check(Repacked(change))
    assert result.passed == (not fault)
    assert fault in result.detail
