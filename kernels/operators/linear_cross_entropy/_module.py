"""nn.Linear whose outputs nobody sees: modules with its parameters, which give the cross-entropy.

What a call is refused for is worded by torch: it gets every call that does not fit, and raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from ...contract import Problem
from ...runtime.emptiness import is_empty
from . import IGNORED

# (x [N, H], weight [V, H], bias [V] or None, labels [N], label smoothing) to the loss [], wide
LossFunction = Callable[[Tensor, Tensor, Tensor | None, Tensor, float], Tensor]


class Call(NamedTuple):
    """Arguments of a call."""

    x: Tensor  # [N, H]
    weight: Tensor  # [V, H]
    bias: Tensor | None  # [V]
    labels: Tensor  # int64 [N]
    smoothing: float


def plain(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> Tensor:
    """torch's own two functions."""
    return cross_entropy(linear(x, weight, bias), labels, ignore_index=IGNORED, label_smoothing=smoothing)


class LinearLoss(nn.Linear):
    """Parameters, initialisation and state dict of nn.Linear, for a problem, in its dtype and mode."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(
            problem["hidden"],
            problem["vocabulary"],
            bias=problem["bias"],
            dtype=getattr(torch, problem["dtype"]),
        )
        self.label_smoothing: float = problem["label_smoothing"]
        self.train(problem["mode"] == "training")


class FusedLinearLoss(LinearLoss):
    """Takes any number of rows. The loss is computed by a function of a file, kept by name in copies."""

    def __init__(self, problem: Problem, loss: LossFunction) -> None:
        super().__init__(problem)
        self._loss = loss

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        """x [N, H] and labels [N], to the loss [].

        Raises IndexError for a label that is neither -100 nor within [0, V), which on a GPU waits for what
        gives the labels; not while a CUDA graph is captured, nor in a graph of torch.compile: there such a
        label makes the loss NaN.
        """
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        narrow = _autocast_dtype(x)
        if not self._fits(x, labels, narrow):
            plain(x, weight, bias, labels, self.label_smoothing)
            raise RuntimeError(
                f"{type(self).__name__}: torch takes such inputs or labels; this takes x [rows, hidden] and "
                "labels int64 [rows]."
            )
        if is_empty(x):
            return plain(x, weight, bias, labels, self.label_smoothing)  # the mean of nothing: NaN
        check_labels(labels, self.out_features)
        if narrow is None:
            return self._loss(x, weight, bias, labels, self.label_smoothing).to(x.dtype)
        with torch.autocast(x.device.type, enabled=False):
            bias = None if bias is None else bias.to(narrow)
            # torch's cross-entropy is one of the functions that autocast runs in float32
            return self._loss(x.to(narrow), weight.to(narrow), bias, labels, self.label_smoothing)

    def _fits(self, x: Any, labels: Any, narrow: torch.dtype | None) -> bool:
        return (
            isinstance(x, Tensor)
            and isinstance(labels, Tensor)
            and x.dim() == 2
            and x.size(1) == self.in_features
            and labels.shape == x.shape[:1]
            and labels.dtype == torch.int64
            and labels.device == x.device == self.weight.device
            and (narrow is not None or x.dtype == self.weight.dtype)
        )


def check_labels(labels: Tensor, vocabulary: int) -> None:
    """Raise IndexError, in torch's words, for a label that is neither -100 nor within [0, vocabulary)."""
    if torch.compiler.is_compiling() or (labels.is_cuda and torch.cuda.is_current_stream_capturing()):
        return  # the host may not wait
    given = labels.masked_fill(labels == IGNORED, 0)
    lowest, highest = torch.stack(given.aminmax()).tolist()
    if lowest < 0 or highest >= vocabulary:
        raise IndexError(f"Target {lowest if lowest < 0 else highest} is out of bounds.")


def _autocast_dtype(x: Any) -> torch.dtype | None:
    """What autocast computes in, or None where it is off; it leaves float64 alone."""
    if not torch._C._is_any_autocast_enabled() or not isinstance(x, Tensor) or x.dtype == torch.float64:
        return None
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
