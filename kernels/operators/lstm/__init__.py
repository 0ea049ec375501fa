"""Long short-term memory, as `torch.nn.LSTM` (Hochreiter and Schmidhuber 1997, with forget gates).

Dimensions: T seq, B batch, I input, H hidden, L layers, D directions (2 when bidirectional), P features
of h: `projection`, or H without one.

    a = x_t W_ih^T + b_ih + h_{t-1} W_hh^T + b_hh          # [B, 4H], gates in the order i, f, g, o
    i, f, g = sigmoid(a_i + p_i c_{t-1}), sigmoid(a_f + p_f c_{t-1}), tanh(a_g)
    c_t = f c_{t-1} + i g
    o = sigmoid(a_o + p_o c_t)
    h_t = o tanh(c_t), or W_hr (o tanh(c_t)) with a projection (Sak et al. 2014)

p_i, p_f and p_o, the rows of `weight_peephole` [3, H], are there with peepholes alone (Gers and
Schmidhuber 2000), which torch does not have.

A module takes x [T, B, I] and optionally (h_0 [L*D, B, P], c_0 [L*D, B, H]), and returns y [T, B, D*P]
and (h_T, c_T). Unbatched x [T, I], `batch_first` and a PackedSequence work as in torch; `dropout` acts
between layers in training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...contract import Boolean, Integer, Operator
from ...recurrent.operator import LAST, LAYERS, SPACES, hyperparameters, make_inputs, work


def conflict(values: Mapping[str, Any]) -> str | None:
    """Conflict in words, or None: a projection makes h smaller."""
    hidden, projection = values["hidden"], values["projection"]
    if projection >= hidden:
        return f"projection={projection}: expected fewer features than hidden={hidden}."
    return None


OPERATOR = Operator(
    name="lstm",
    title="long short-term memory layers",
    hyperparameters=hyperparameters(
        Integer(
            name="projection",
            aliases=("proj_size",),
            default=0,
            implied=True,
            minimum=0,
            maximum=65536,
            help="features that h is projected to (P), fewer than hidden; 0: none",
        ),
        Boolean(name="peepholes", default=False, implied=True, help="gates see the cell state"),
    ),
    default="torch_lstm",
    make_inputs=make_inputs,
    work=work,
    examples=(
        *LAYERS,
        {"hidden": 12, "input": 9, "batch": 3, "seq": 5, "projection": 4, "layers": 2, "bidirectional": True},
        {"hidden": 17, "batch": 6, "seq": 7, "peepholes": True, "layers": 2},
        {"hidden": 13, "batch": 4, "seq": 6, "peepholes": True, "projection": 5, "packed": True},
        LAST,
    ),
    spaces=SPACES,
    conflict=conflict,
)
