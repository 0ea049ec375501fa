"""A model of blocks and what it is called with; files with others have fixtures of their own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.selector.rewriting.replayed import Model


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().train()


@pytest.fixture
def given() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(5, 2, generator=generator), torch.rand(5, 4, generator=generator)
