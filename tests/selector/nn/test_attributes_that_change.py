"""Attributes may change between calls, as those of torch's modules may: the choice is another then."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from selector import nn as drop_in


def test_a_layout_that_changes_is_followed() -> None:
    ours, theirs = drop_in.LSTM(4, 4, implementation="hoisted"), nn.LSTM(4, 4)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 5, 4)
    ours(x)
    ours.batch_first = theirs.batch_first = True
    torch.testing.assert_close(ours(x)[0], theirs(x)[0])


@pytest.mark.parametrize(
    ("module", "x", "name", "value"),
    [
        (drop_in.GELU(), torch.randn(8), "approximate", "tanh"),
        (drop_in.LSTM(4, 4), torch.randn(3, 5, 4), "batch_first", True),
    ],
)
def test_another_attribute_is_another_choice(module: Any, x: Tensor, name: str, value: object) -> None:
    module(x)
    setattr(module, name, value)
    module(x)
    assert [choice.problem[name] for choice in module.choices[-1:]] == [value]


def test_a_layer_whose_outputs_change_in_number_is_chosen_for_again() -> None:
    linear, x = drop_in.Linear(8, 8), torch.randn(4, 8)
    linear(x)
    linear.weight, linear.bias = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(6))
    linear.out_features = 6
    assert linear(x).shape == (4, 6)
    assert [choice.problem["out_features"] for choice in linear.choices] == [8, 6]
