"""Gated recurrent units, as `torch.nn.GRU` (Cho et al. 2014; the reset gate acts after the product).

Dimensions: T seq, B batch, I input, H hidden, L layers, D directions (2 when bidirectional).

    a = x_t W_ih^T + b_ih                                  # [B, 3H], gates in the order r, z, n
    u = h_{t-1} W_hh^T + b_hh                              # [B, 3H]
    r, z = sigmoid(a_r + u_r), sigmoid(a_z + u_z)
    n = tanh(a_n + r u_n)
    h_t = (1 - z) n + z h_{t-1}

A module takes x [T, B, I] and optionally h_0 [L*D, B, H], and returns y [T, B, D*H] and h_T. Unbatched
x [T, I], `batch_first` and a PackedSequence work as in torch; `dropout` acts between layers in training.
"""

from __future__ import annotations

from ...contract import Operator
from ...recurrent.operator import EXAMPLES, SPACES, hyperparameters, make_inputs, work

OPERATOR = Operator(
    name="gru",
    title="gated recurrent unit layers",
    hyperparameters=hyperparameters(),
    default="torch_gru",
    make_inputs=make_inputs,
    work=work,
    examples=EXAMPLES,
    spaces=SPACES,
)
