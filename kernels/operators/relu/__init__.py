"""Rectified linear units, as `torch.nn.ReLU`.

Dimensions: N elements, of x in any shape.

    y = max(x, 0)

torch keeps y for its backward pass, and so does `from_output`; `bit_mask` keeps a bit of each element.
"""

from __future__ import annotations

from ...activations.operator import EXAMPLES, SPACES, hyperparameters, make_inputs, work
from ...contract import Operator

OPERATOR = Operator(
    name="relu",
    title="rectified linear units",
    hyperparameters=hyperparameters(),
    default="torch_relu",
    make_inputs=make_inputs,
    work=work,
    examples=EXAMPLES,
    spaces=SPACES,
)
