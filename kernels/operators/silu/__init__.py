"""Sigmoid linear units, also called swish, as `torch.nn.SiLU` (Elfwing et al. 2017).

Dimensions: N elements, of x in any shape.

    y = x / (1 + exp(-x))

All implementations but `from_output` keep x, which is the caller's and costs nothing where something else
holds it.
"""

from __future__ import annotations

from ...activations.operator import EXAMPLES, SPACES, hyperparameters, make_inputs, work
from ...contract import Operator

OPERATOR = Operator(
    name="silu",
    title="sigmoid linear units",
    hyperparameters=hyperparameters(),
    default="torch_silu",
    make_inputs=make_inputs,
    work=work,
    examples=EXAMPLES,
    spaces=SPACES,
)
