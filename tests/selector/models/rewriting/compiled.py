"""A model to compile, and what stands in for a compiler and a clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from selector import nn as drop_in
from selector.models.rewriting import compilation, timing


class Model(nn.Module):
    """x [B, 4] to y [B, 2], with a buffer that changes, and dropout where it has a share."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.relu, self.last = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)
        self.norm, self.dropout = nn.BatchNorm1d(4), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.dropout(self.norm(self.relu(self.first(x)))))
        return y


def compile_by(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    def turn_on(model: nn.Module, mode: str | None) -> None:
        compilation.compile_in_place(model, backend=backend)
        model._compiled_call_impl.mode = mode  # type: ignore[union-attr]

    monkeypatch.setattr(compilation, "turn_on", turn_on)


def name_of(model: Any) -> str:
    """Name of the arrangement that a model is in."""
    ours = isinstance(model.relu, drop_in.ReLU)
    call = model._compiled_call_impl
    if call is None:
        return "ours" if ours else "as given"
    return {None: "compiled", "reduce-overhead": "reduce_overhead"}[call.mode] + ("_ours" if ours else "")


def steps_take(monkeypatch: pytest.MonkeyPatch, milliseconds: Mapping[str, float]) -> None:
    """Steps of each arrangement take so long; 10 ms where nothing is said. What is compiled runs once."""
    step, run = timing.Steps.__call__, set()

    def steps(self: timing.Steps, count: int) -> list[float]:
        call: Any = self._model._compiled_call_impl
        if call is not None and call not in run:
            run.add(call)
            step(self, 1)
        return [milliseconds.get(name_of(self._model), 10.0)] * count

    monkeypatch.setattr(timing.Steps, "__call__", steps)
