"""Vanilla recurrent layers, as `torch.nn.RNN` (Elman 1990).

Dimensions: T seq, B batch, I input, H hidden, L layers, D directions (2 when bidirectional).

    h_t = f(x_t W_ih^T + b_ih + h_{t-1} W_hh^T + b_hh)     # [B, H], f is tanh or relu: `nonlinearity`

A module takes x [T, B, I] and optionally h_0 [L*D, B, H], and returns y [T, B, D*H] and h_T. Unbatched
x [T, I], `batch_first` and a PackedSequence work as in torch; `dropout` acts between layers in training.
"""

from __future__ import annotations

from dataclasses import replace

from ...contract import OneOf, Operator
from ...recurrent.operator import LAST, LAYERS, SPACES, hyperparameters, make_inputs, work

OPERATOR = Operator(
    name="rnn",
    title="vanilla recurrent layers",
    hyperparameters=hyperparameters(
        OneOf(name="nonlinearity", default="tanh", choices=("tanh", "relu"), help="what each step ends with")
    ),
    default="torch_rnn",
    make_inputs=make_inputs,
    work=work,
    examples=(
        *LAYERS,
        {"hidden": 40, "batch": 6, "seq": 7, "nonlinearity": "relu", "bidirectional": True},
        LAST,
    ),
    spaces={
        kind: replace(space, values={**space.values, "nonlinearity": ("tanh", "relu")})
        for kind, space in SPACES.items()
    },
)
