"""Modules are built without drawing the parameters that are loaded over them at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import init
from torch.overrides import TorchFunctionMode

DRAWS = {
    init.uniform_,
    init.normal_,
    init.trunc_normal_,
    init.kaiming_uniform_,
    init.kaiming_normal_,
    init.xavier_uniform_,
    init.xavier_normal_,
    torch.Tensor.uniform_,
    torch.Tensor.normal_,
}


@contextmanager
def without_draws() -> Iterator[None]:
    """Leave out the random numbers that modules fill their parameters with.

    A processor draws them one after the other, which is nearly all of the 0.4 s that it takes to build
    an LSTM of hidden 2048. What is drawn from a generator of its own is kept.
    """
    with _WithoutDraws():
        yield


class _WithoutDraws(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if function in DRAWS and named.get("generator") is None:
            return named["tensor"] if "tensor" in named else args[0]
        return function(*args, **named)
