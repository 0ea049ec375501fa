"""Activation and dropout between the products, in torch's operations: on CPUs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import gelu, relu, silu

from ._activation import Middle

aten = torch.ops.aten


def forward(h: Tensor, middle: Middle) -> tuple[Tensor, tuple[Tensor, ...]]:
    """a of h [rows, inner]; nothing is kept beside them."""
    a = activate(h, middle.activation)
    return (a if middle.seed is None else a * _factor(middle, a)), ()


def more_for(_h: Tensor, _middle: Middle) -> tuple[Tensor, ...]:
    """Memory for what `forward` keeps beside h and a: none."""
    return ()


def backward(
    h: Tensor, _more: tuple[Tensor, ...], da: Tensor, middle: Middle, *, again: bool, bias: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """dh, with `again` a, and with `bias` the sum of dh over rows, of da [rows, inner]."""
    a = activate(h, middle.activation) if again else None
    if middle.seed is not None:
        factor = _factor(middle, da)
        da, a = da * factor, None if a is None else a * factor
    dh = _pull_back(da, h, middle.activation)
    return dh, a, dh.sum(0) if bias else None


def activate(h: Tensor, activation: str) -> Tensor:
    """The activation by its name."""
    if activation == "relu":
        return relu(h)
    if activation == "silu":
        return silu(h)
    return gelu(h, approximate="tanh" if activation == "gelu_tanh" else "none")


def _pull_back(dy: Tensor, h: Tensor, activation: str) -> Tensor:
    """The gradient of h from that of the activation."""
    dh: Tensor
    if activation == "relu":
        dh = aten.threshold_backward(dy, h, 0)
    elif activation == "silu":
        dh = aten.silu_backward(dy, h)
    else:
        dh = aten.gelu_backward(dy, h, approximate="tanh" if activation == "gelu_tanh" else "none")
    return dh


def _factor(middle: Middle, like: Tensor) -> Tensor:
    """What dropout multiplies by: the same for one seed, forwards and backwards."""
    assert middle.seed is not None
    generator = torch.Generator(like.device).manual_seed(int(middle.seed))
    draws = torch.randint(65536, like.shape, generator=generator, device=like.device)
    return (draws >= middle.threshold).to(like.dtype) * middle.scale
