"""The equations of `kernels/operators/lstm/__init__.py`, line by line, in any precision."""

from __future__ import annotations

from torch import Tensor, nn

from ...contract import Problem
from ...recurrent.layer import States
from ...recurrent.reference import Parameters, Stacked


class Reference(Stacked):
    """LSTM, with a projection and peepholes where the problem has them."""

    def step(self, x_t: Tensor, states: States, w: Parameters) -> States:
        """x_t [B, I], h [B, P] and c [B, H] to the next h and c."""
        h, c = states
        p_i, p_f, p_o = (0, 0, 0) if w.w_peephole is None else w.w_peephole
        a_i, a_f, a_g, a_o = (x_t @ w.w_ih.T + w.b_ih + h @ w.w_hh.T + w.b_hh).chunk(4, -1)  # [B, H] each
        i, f, g = (a_i + p_i * c).sigmoid(), (a_f + p_f * c).sigmoid(), a_g.tanh()
        c = f * c + i * g
        h = (a_o + p_o * c).sigmoid() * c.tanh()
        return h if w.w_hr is None else h @ w.w_hr.T, c


def build(problem: Problem) -> nn.Module:
    """The reference for a problem, in float32; the gate runs it in float64."""
    return Reference(problem)
