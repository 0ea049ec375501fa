"""The equations of `kernels/operators/gru/__init__.py`, line by line, in any precision."""

from __future__ import annotations

from torch import Tensor, nn

from ...contract import Problem
from ...recurrent.layer import States
from ...recurrent.reference import Parameters, Stacked


class Reference(Stacked):
    """GRU with the reset gate after the product."""

    def step(self, x_t: Tensor, states: States, w: Parameters) -> States:
        """x_t [B, I] and h [B, H] to the next h."""
        (h,) = states
        a_r, a_z, a_n = (x_t @ w.w_ih.T + w.b_ih).chunk(3, -1)  # [B, H] each
        u_r, u_z, u_n = (h @ w.w_hh.T + w.b_hh).chunk(3, -1)
        r, z = (a_r + u_r).sigmoid(), (a_z + u_z).sigmoid()
        n = (a_n + r * u_n).tanh()
        return ((1 - z) * n + z * h,)


def build(problem: Problem) -> nn.Module:
    """The reference for a problem, in float32; the gate runs it in float64."""
    return Reference(problem)
