"""The module around one layer function: parameters, checks and initial states of `nn.LSTM`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..contract import Problem
from . import directions


class Weights(NamedTuple):
    """Parameters of one layer and direction; the biases are None without bias."""

    w_ih: Tensor  # [4H, I]
    w_hh: Tensor  # [4H, H]
    b_ih: Tensor | None = None  # [4H]
    b_hh: Tensor | None = None  # [4H]


# (x [T, B, I], h_0 [B, H], c_0 [B, H], weights, reverse) -> y [T, B, H], h_T [B, H], c_T [B, H];
# with `reverse` the layer runs from the last time step to the first, and y stays in the order of time
LayerFunction = Callable[[Tensor, Tensor, Tensor, Weights, bool], tuple[Tensor, Tensor, Tensor]]


class Layered(nn.LSTM):
    """An `nn.LSTM` whose layers are computed by a function of ours.

    Inherits parameters, initialisation, state dict and the checks with their messages; takes other
    batch sizes and sequence lengths than those of the problem. Packed sequences are refused.
    """

    def __init__(self, problem: Problem, layer: LayerFunction) -> None:
        super().__init__(
            problem["input"],
            problem["hidden"],
            problem["layers"],
            bias=problem["bias"],
            bidirectional=problem["bidirectional"],
            dtype=getattr(torch, problem["dtype"]),
        )
        self._layer = layer
        self._directions = directions(problem)
        self.train(problem["mode"] == "training")

    def forward(  # type: ignore[override]
        self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x [T, B, I] or [T, I] and optionally (h_0, c_0), to y and (h_T, c_T), as nn.LSTM."""
        if not isinstance(x, Tensor):
            raise TypeError(f"LSTM: expected the input as a tensor, got {type(x).__name__}: pad it first")
        if x.dim() not in (2, 3):
            raise ValueError(f"LSTM: Expected input to be 2D or 3D, got {x.dim()}D instead")
        batched = x.dim() == 3
        if hx is not None:
            _check_rank(hx, batched)
            hx = hx if batched else (hx[0].unsqueeze(1), hx[1].unsqueeze(1))
        x = x if batched else x.unsqueeze(1)
        if hx is None:
            zeros = x.new_zeros(self.num_layers * self._directions, x.size(1), self.hidden_size)
            hx = (zeros, zeros)
        self.check_forward_args(x, hx, None)
        if x.size(0) == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        if hx[0].dtype != x.dtype or hx[1].dtype != x.dtype:
            raise ValueError(f"LSTM: states of {hx[0].dtype} and {hx[1].dtype} with an input of {x.dtype}")
        y, h, c = self._run(x, *hx)
        return (y, (h, c)) if batched else (y.squeeze(1), (h.squeeze(1), c.squeeze(1)))

    def _run(self, x: Tensor, h_0: Tensor, c_0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h_last: list[Tensor] = []
        c_last: list[Tensor] = []
        weights = [Weights(*parameters) for parameters in self.all_weights]
        for _ in range(self.num_layers):
            outputs = []
            for direction in range(self._directions):
                row = len(h_last)
                y, h, c = self._layer(x, h_0[row], c_0[row], weights[row], direction == 1)
                outputs.append(y)
                h_last.append(h)
                c_last.append(c)
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        return x, _stack(h_last), _stack(c_last)


def _stack(rows: list[Tensor]) -> Tensor:
    # a view where one row is all: no copy
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)


def _check_rank(hx: Any, batched: bool) -> None:
    rank, words = (3, "batched 3-D") if batched else (2, "unbatched 2-D")
    if hx[0].dim() != rank or hx[1].dim() != rank:
        raise RuntimeError(
            f"For {words} input, hx and cx should also be {rank}-D "
            f"but got ({hx[0].dim()}-D, {hx[1].dim()}-D) tensors"
        )


def step_order(seq: int, reverse: bool) -> range:
    """The time steps in the order in which they are computed."""
    return range(seq - 1, -1, -1) if reverse else range(seq)
