"""What a rewritten model may differ by from the original."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from selector.models.rewriting.equivalence import Original, difference, results

WEIGHTS, LAYERS = 48, 40


class Deep(nn.Module):
    """So many layers that rounding is not small in the end. `wide`: in float32; `fault`: scales one."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weights = nn.ParameterList(
            1.5 * torch.randn(WEIGHTS, WEIGHTS, generator=generator) / WEIGHTS**0.5 for _ in range(layers)
        )
        self.wide, self.fault = False, 1.0

    def forward(self, x: Tensor) -> Tensor:
        y = x.float() if self.wide else x
        with torch.autocast("cpu", enabled=False) if self.wide else nullcontext():
            for place, weight in enumerate(self.weights):
                y = torch.tanh(y @ weight.to(y.dtype) * (self.fault if place == 3 else 1.0))
        return y.to(x.dtype)


@pytest.fixture
def example() -> Tensor:
    return torch.randn(64, WEIGHTS, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_rounds_otherwise_is_the_same_and_a_fault_is_not(dtype: torch.dtype, example: Tensor) -> None:
    model, example = Deep().to(dtype), example.to(dtype)
    original = Original(model, example, gradients=True)
    before = results(model, example, gradients=True)
    assert original.differs() is None
    model.wide = True
    if dtype == torch.bfloat16:  # the table's limit alone would refuse it
        assert "allowed is" in str(difference(results(model, example, gradients=True), before))
    assert original.differs() is None
    model.wide, model.fault = False, 1.3
    assert "RMS of its size, allowed is" in str(original.differs())


def test_under_autocast_weights_in_float32_count_as_rounded_to_16_bits(example: Tensor) -> None:
    model = Deep()
    with torch.autocast("cpu", torch.bfloat16):
        original = Original(model, example, gradients=True)
        model.wide = True
        assert original.differs() is None
    with torch.autocast("cpu", enabled=False):
        model.wide = False
        original = Original(model, example, gradients=True)
    with torch.autocast("cpu", torch.bfloat16):  # which is not what was rounded
        assert "RMS of its size, allowed is" in str(original.differs())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_weights_are_as_before(dtype: torch.dtype, example: Tensor) -> None:
    model = Deep(layers=2).to(dtype)
    kept = [one.detach().clone() for one in model.parameters()]
    versions = [one._version for one in model.parameters()]
    Original(model, example.to(dtype), gradients=True)
    for one, before in zip(model.parameters(), kept, strict=True):
        assert torch.equal(one, before)
        assert one.grad is None
    assert [one._version for one in model.parameters()] == versions  # who waits for backward is not disturbed


def test_weights_of_other_kinds_are_left_alone(example: Tensor) -> None:
    model = nn.Sequential(nn.Linear(WEIGHTS, 2))
    model.scale = nn.Parameter(torch.ones(3, dtype=torch.float8_e4m3fn), requires_grad=False)
    assert Original(model, example, gradients=False).differs() is None
