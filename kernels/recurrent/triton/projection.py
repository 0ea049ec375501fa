"""Places of inputs and parameters in the slots of the Triton implementations; see `cells`."""

from __future__ import annotations

import torch
from torch import Tensor

from ..layer import Cell, Weights


def slot_count(cell: Cell) -> int:
    """S: blocks of H columns that a step's gates take."""
    return 1 if cell.gates == 1 else 4


def to_slots(cell: Cell, parameter: Tensor) -> Tensor:
    """W_ih or a bias in the order of the slots that inputs go to: gru's n first."""
    if cell.gates != 3:
        return parameter
    size = parameter.size(0) // 3
    return torch.cat((parameter[2 * size :], parameter[: 2 * size]))


def from_slots(cell: Cell, gradient: Tensor) -> Tensor:
    """The inverse of `to_slots`."""
    if cell.gates != 3:
        return gradient
    size = gradient.size(0) // 3
    return torch.cat((gradient[size:], gradient[:size]))


def _biases(cell: Cell, weights: Weights) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the inputs' slots, and to the last slot where a state alone goes to that."""
    if weights.b_ih is None or weights.b_hh is None:
        return None, None
    if cell.gates != 3:
        return weights.b_ih + weights.b_hh, None
    size = weights.b_hh.size(0) // 3
    bias = to_slots(cell, weights.b_ih)
    bias[size:] += weights.b_hh[: 2 * size]
    return bias, weights.b_hh[2 * size :]


def project(cell: Cell, x: Tensor, weights: Weights, out: Tensor, *, minor: bool) -> None:
    """Write x W_ih^T and the biases to the slots of one direction, [T, B, S*H], or [T, S*H, B]."""
    width = weights.w_ih.size(0)
    matrix = to_slots(cell, weights.w_ih)
    bias, last = _biases(cell, weights)
    seq = x.size(0)
    if minor:
        target, x_t, matrices = out[:, :width], x.transpose(1, 2), matrix.expand(seq, *matrix.shape)
        if bias is None:
            torch.bmm(matrices, x_t, out=target)
        else:
            torch.baddbmm(bias.unsqueeze(1).expand_as(target), matrices, x_t, out=target)
    else:
        tokens, target = x.reshape(-1, x.size(-1)), out.flatten(0, 1)[:, :width]
        if bias is None:
            torch.mm(tokens, matrix.t(), out=target)
        else:
            torch.addmm(bias, tokens, matrix.t(), out=target)
    if cell.gates == 3:
        rest = out[:, width:] if minor else out[..., width:]
        if last is None:
            rest.zero_()
        else:
            rest.copy_(last.unsqueeze(1) if minor else last)
