"""Blocks to replay, and what stands in for CUDA graphs on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from selector.rewriting import captures, replaying


class Block(nn.Module):
    """x [B, H] and a mask to (y, None); the scale is no parameter."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(4, 4, bias=bias), nn.LayerNorm(4)

    def forward(self, x: Tensor, mask: Tensor, scale: float = 1.0) -> tuple[Tensor, None]:
        return x + scale * self.norm(torch.tanh(self.inner(x))) * mask, None


class Model(nn.Module):
    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.embedding, self.head = nn.Linear(2, 4), nn.Linear(4, 1)
        self.layers = nn.ModuleList(Block(bias=place != 1) for place in range(blocks))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.embedding(x)
        for layer in self.layers:
            y, _ = layer(y, mask, scale=0.5)
        return self.head(y)


class Rerun:
    """What a graph is replaced by: the same run again, whose results go to the memory of the first."""

    def __init__(self) -> None:
        self.latest: dict[int, Tensor] = {}
        self.kept: list[Any] = []  # so that ids stay theirs

    def __call__(self, run: Callable[[], Any]) -> tuple[Any, Any]:
        with torch.enable_grad():
            first = run()
        self.kept.append(first)
        rerun = self

        class Graph:
            def replay(self) -> None:
                with torch.enable_grad():
                    again = run()
                for old, new in zip(first, again, strict=True):
                    if old is not None:
                        old.detach().data.copy_(new.detach())
                        rerun.latest[id(old)] = new

        return Graph(), first


def rerun_in(monkeypatch: pytest.MonkeyPatch) -> Rerun:
    """Stands in for captures from here on: backward of a run is that of its last replay."""
    rerun = Rerun()
    real = torch.autograd.grad

    class Autograd:
        @staticmethod
        def grad(reached: Any, wanted: Any, upstream: Any, **options: Any) -> Any:
            current = [rerun.latest.get(id(one), one) for one in reached]
            return real(current, wanted, upstream, retain_graph=True, **options)

    class Torch:
        autograd = Autograd

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

    @contextmanager
    def themselves(module: nn.Module) -> Iterator[list[nn.Parameter]]:
        yield [one for one in module.parameters() if one.requires_grad]

    monkeypatch.setattr(captures, "torch", Torch())
    monkeypatch.setattr(captures, "stand_ins", themselves)
    return rerun


def turn_on(model: nn.Module, given: Any, record: captures.Recorder) -> None:
    for stack in replaying.find(model):
        calls = replaying.recorded(model, given, stack.blocks)
        replaying.replayed(stack, calls, record)


def counts(model: Model) -> tuple[int, int]:
    stack = model.layers[0].__dict__["_replays"]
    return stack.replayed, stack.calls


def trained(model: Model, steps: Sequence[tuple[Tensor, Tensor]], accumulate: int = 1) -> list[Tensor]:
    """Losses of steps of SGD, then the weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for number, (x, mask) in enumerate(steps):
        loss = model(x, mask).square().mean()
        loss.backward()
        losses.append(loss.detach())
        if number % accumulate == accumulate - 1:
            optimizer.step()
            optimizer.zero_grad()
    return [*losses, *(one.detach() for one in model.parameters())]


def draws(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [
        (torch.randn(5, 2, generator=generator), torch.rand(5, 4, generator=generator)) for _ in range(count)
    ]
