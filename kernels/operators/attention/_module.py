"""Attention as a module: checks of its arguments, autocast and dropout, around a function of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...contract import Problem


class Call(NamedTuple):
    """Arguments of one call; see `kernels/operators/attention/__init__.py`."""

    q: Tensor  # [B, H, S, D]
    k: Tensor  # [B, G, K, D]
    v: Tensor  # [B, G, K, D]
    mask: Tensor | None  # [B or 1, H or 1, S or 1, K], bool
    bias: Tensor | None  # [H, S, K]
    causal: bool
    dropout: float  # 0 where nothing is dropped
    return_weights: bool
    # of dropout, where it is drawn: a seed, int64 [1], or what is kept, bool [B, H, S, K] (`tempo`)
    seed: Tensor | None = None

    @property
    def scale(self) -> float:
        """Factor of the logits: 1 / sqrt(D)."""
        return float(self.q.size(3) ** -0.5)


Outputs = Tensor | tuple[Tensor, Tensor]  # out [B, H, S, D], or that and the weights [B, H, S, K]
Attend = Callable[[Call], Outputs]


class Attention(nn.Module):
    """Attention by a function. `dropout` acts in training alone, and may be set at any time."""

    def __init__(self, problem: Problem, attend: Attend) -> None:
        super().__init__()
        self.causal: bool = problem["causal"]
        self.masked: bool = problem["mask"] != "none"
        self.biased: bool = problem["bias"]
        self.return_weights: bool = problem["return_weights"]
        self.dropout = float(problem["dropout"])
        self._attend = attend
        self.train(problem["mode"] == "training")

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *extras: Tensor) -> Outputs:
        """q [B, H, S, D], k and v [B, G, K, D], then the mask and the bias of the problem.

        Raises TypeError for too few or too many tensors, RuntimeError for shapes and dtypes that do not
        fit together, ValueError for a `dropout` outside of 0 to 1.
        """
        if len(extras) != self.masked + self.biased:
            names = ["mask"] * self.masked + ["bias"] * self.biased
            wanted = ", ".join(["q", "k", "v", *names])
            raise TypeError(f"attention of this problem takes {wanted}: got {3 + len(extras)} tensors.")
        mask = extras[0] if self.masked else None
        bias = extras[-1] if self.biased else None
        share = self.dropout if self.training else 0.0
        if not 0 <= share <= 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {share}")
        call = Call(q, k, v, mask, bias, self.causal, share, self.return_weights)
        kind = q.device.type
        if torch.is_autocast_enabled(kind):
            call = _cast(call, torch.get_autocast_dtype(kind))
            with torch.autocast(kind, enabled=False):
                return self._attend(_checked(call))
        return self._attend(_checked(call))

    def extra_repr(self) -> str:
        """The module's options as text for print."""
        names = ("causal", "masked", "biased", "return_weights", "dropout")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


def _cast(call: Call, dtype: torch.dtype) -> Call:
    """As autocast does for torch's own attention: all floating-point tensors but those of float64."""

    def cast(tensor: Tensor) -> Tensor:
        return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)

    bias = None if call.bias is None else cast(call.bias)
    return call._replace(q=cast(call.q), k=cast(call.k), v=cast(call.v), bias=bias)


def _checked(call: Call) -> Call:
    """The call. torch's CPU kernel reads beyond the end of values that are fewer than the keys."""
    q, k, v, mask, bias = call[:5]
    if not (q.dim() == k.dim() == 4 and k.shape == v.shape):
        raise _mismatch(call, "q must be [B, H, S, D], and k and v of one shape [B, G, K, D]")
    batch, heads, seq, features = q.shape
    groups, keys = k.size(1), k.size(2)
    if k.size(0) != batch or k.size(3) != features:
        raise _mismatch(call, "q, k and v must agree in their first and last dimension")
    if groups != heads and (groups == 0 or heads % groups):
        raise _mismatch(call, "the heads of k must divide those of q")
    if not q.dtype == k.dtype == v.dtype == (bias.dtype if bias is not None else q.dtype):
        raise RuntimeError(
            "attention: q, k, v and the bias must have one dtype, got "
            + ", ".join(str(tensor.dtype) for tensor in (q, k, v, bias) if tensor is not None)
        )
    if bias is not None and bias.shape != (heads, seq, keys):
        raise _mismatch(call, f"the bias must be [{heads}, {seq}, {keys}], got {list(bias.shape)}")
    if mask is not None:
        fits = mask.dim() == 4 and all(
            size in (1, full) for size, full in zip(mask.shape, (batch, heads, seq), strict=False)
        )
        if mask.dtype != torch.bool or not fits or mask.size(3) != keys:
            found = f"{list(mask.shape)} of {mask.dtype}"
            raise _mismatch(call, f"the mask must be boolean, [B, 1, S, K] or [B, 1, 1, K], got {found}")
    return call


def side_by_side(tensor: Tensor) -> Tensor:
    """The tensor with the elements of its last axis side by side, as kernels load them: a copy if need be."""
    return tensor if tensor.stride(-1) == 1 or tensor.size(-1) == 1 else tensor.contiguous()


def _mismatch(call: Call, expected: str) -> RuntimeError:
    shapes = ", ".join(str(list(tensor.shape)) for tensor in call[:3])
    return RuntimeError(f"attention: {expected}; q, k and v have the shapes {shapes}")
