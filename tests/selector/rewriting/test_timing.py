"""What a pass takes is said of the model as it was and as it is, and nothing else of it changes."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

import selector
from selector.rewriting.timing import Timed


class Waiting(nn.Module):
    """Takes `seconds`, draws random numbers, and counts its calls in a buffer."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.linear, self.seconds = nn.Linear(2, 2), seconds
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        self.calls += 1
        return nn.functional.dropout(self.linear(x), 0.5)


@pytest.mark.parametrize(("after", "slower"), [(0.03, True), (0.001, False)])
def test_a_model_that_became_slower_is_said_to_be(after: float, slower: bool) -> None:
    model = Waiting(0.01).train()
    random = torch.get_rng_state()
    timed = Timed(model, torch.ones(1, 2), gradients=True)
    assert 10 <= timed.before_ms < 30
    model.seconds = after
    words = timed.compared()
    assert words.startswith("Timed on the example, forward and backward: 1")
    assert ("Slower: selector.restore(model) undoes it." in words) is slower
    assert model.calls == 0
    assert model.linear.weight.grad is None
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize(
    ("wishes", "timed"), [({}, True), ({"objective": "memory"}, False), ({"objective": "device_time"}, False)]
)
def test_the_report_has_it_where_speed_alone_counts(
    wishes: dict[str, str], timed: bool, sqlite_database: object
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU()).train()
    names = {"linear": "column_major"}
    report = selector.optimize(
        model,
        torch.ones(4, 8),
        overrides=names,
        database=sqlite_database,
        **wishes,  # type: ignore[arg-type]
    )
    assert len(report.replaced) == 1
    assert ("Timed on the example" in str(report)) is timed
