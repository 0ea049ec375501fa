"""Blocks to replay, and what stands in for CUDA graphs on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from selector.models.replay import capture as captures
from selector.models.replay import replay as replaying


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


class Tape(TorchDispatchMode):
    """Stands in for a CUDA graph on a CPU: torch's operations are recorded once, and run again into the same
    memory; Python is not repeated.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self._calls.append((function, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        with torch.no_grad():
            for function, args, kwargs, result in self._calls:
                touched = tuple(one for one in tree_flatten((args, kwargs))[0] if isinstance(one, Tensor))
                with torch.autograd._unsafe_preserve_version_counter(touched):
                    again = function(*args, **kwargs)
                for old, new in zip(tree_flatten(result)[0], tree_flatten(again)[0], strict=True):
                    # another shape: a tensor that was pointed at other memory since, which is done again
                    if (
                        isinstance(old, Tensor)
                        and old.shape == new.shape
                        and old.data_ptr() != new.data_ptr()
                    ):
                        old.detach().data.copy_(new)  # to the memory alone: no version counts it


def record(run: Callable[[], Any]) -> tuple[Tape, Any]:
    with Tape() as tape:
        found = run()
    return tape, found


def turn_on(model: nn.Module, given: Any, record: captures.Recorder = record) -> None:
    for stack in replaying.find(model):
        calls = captures.without_activations(replaying.recorded(model, given, stack.blocks))
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


class Layers(nn.Module):
    """Blocks made by a function, one after the other; `call` gives a block its arguments."""

    def __init__(self, make: Callable[[], nn.Module], call: Any = lambda block, y, *_: block(y)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.start, self.layers = nn.Linear(4, 4), nn.ModuleList(make() for _ in range(3))
        self.call = call
        self.train()

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        y = self.start(x)
        for layer in self.layers:
            y = self.call(layer, y, *more)
        return y


class Scaled(nn.Module):
    """y = tanh(x W + b) + x * scale, and what `of` makes of it."""

    def __init__(self, of: Callable[..., Any] = lambda _module, y: y) -> None:
        super().__init__()
        self.linear, self.drop, self.of = nn.Linear(4, 4), nn.Dropout(0.0), of
        self.register_buffer("shift", torch.zeros(()))

    def forward(self, x: Tensor, *scale: Any) -> Any:
        factor = scale[0] if scale and isinstance(scale[0], Tensor) else 1.0
        return self.of(self, self.drop(torch.tanh(self.linear(x))) + self.shift + x * factor)


def drawn(seed: int) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))


def replays(model: Layers) -> tuple[int, int]:
    stack = model.layers[-1].__dict__["_replays"]
    return stack.replayed, stack.calls
