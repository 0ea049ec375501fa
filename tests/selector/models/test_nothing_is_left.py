"""What models are looked at with gives all of its tensors back."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import selector
from selector.models.as_model import traced


def alive() -> int:
    """Tensors; those that only a graph of autograd holds too, for Python knows them as well."""
    gc.collect()
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("look", [traced, selector.inspect_model])
def test_no_graph_keeps_itself_alive(look: Callable[..., Any]) -> None:
    """A sigmoid keeps its result, whose graph keeps what looks at it."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), nn.LayerNorm(64), nn.Linear(64, 64), nn.Sigmoid())
    inputs = torch.randn(256, 64)
    look(model, inputs)  # what is made once and kept
    for parameter in model.parameters():
        parameter.grad = None
    before = alive()
    found = look(model, inputs)
    assert found is not None
    assert alive() == before
