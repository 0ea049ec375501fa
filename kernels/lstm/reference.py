"""The equations of `kernels/lstm/__init__.py`, line by line; every step in the open, in any precision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..contract import Problem
from ..recurrent.operator import directions, parameter_shapes


class Reference(nn.Module):
    """Multi-layer, bidirectional LSTM with the parameter names of `nn.LSTM`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.layers, self.directions = problem["layers"], directions(problem)
        for name, shape in parameter_shapes(problem).items():
            value = torch.empty(shape).uniform_(-(problem["hidden"] ** -0.5), problem["hidden"] ** -0.5)
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x [T, B, I] and (h_0, c_0), each [L*D, B, H], to y [T, B, D*H] and (h_T, c_T)."""
        h_last, c_last = [], []
        for layer in range(self.layers):
            outputs = []
            for direction in range(self.directions):
                row = layer * self.directions + direction
                steps = x.unbind(0) if direction == 0 else x.unbind(0)[::-1]
                h_all, c = self._scan(steps, state[0][row], state[1][row], layer, direction)
                h_last.append(h_all[-1])
                c_last.append(c)
                outputs.append(torch.stack(h_all if direction == 0 else h_all[::-1]))  # [T, B, H]
            x = torch.cat(outputs, -1)  # [T, B, D*H]
        return x, (torch.stack(h_last), torch.stack(c_last))

    def _scan(
        self, steps: tuple[Tensor, ...], h: Tensor, c: Tensor, layer: int, direction: int
    ) -> tuple[list[Tensor], Tensor]:
        suffix = f"_l{layer}" + ("_reverse" if direction else "")
        parameters = dict(self.named_parameters())
        w_ih, w_hh = parameters[f"weight_ih{suffix}"], parameters[f"weight_hh{suffix}"]
        b_ih, b_hh = parameters.get(f"bias_ih{suffix}", 0), parameters.get(f"bias_hh{suffix}", 0)
        h_all = []
        for x_t in steps:
            a = x_t @ w_ih.T + b_ih + h @ w_hh.T + b_hh  # [B, 4H]
            a_i, a_f, a_g, a_o = a.chunk(4, -1)
            i, f, g, o = a_i.sigmoid(), a_f.sigmoid(), a_g.tanh(), a_o.sigmoid()
            c = f * c + i * g
            h = o * c.tanh()
            h_all.append(h)
        return h_all, c


def build(problem: Problem) -> nn.Module:
    """The reference for a problem, in float32; the gate runs it in float64."""
    return Reference(problem)
