"""Gaussian error linear units, as `torch.nn.GELU` (Hendrycks and Gimpel 2016).

Dimensions: N elements, of x in any shape.

    y = x (1 + erf(x / sqrt(2))) / 2                                              approximate = none
    y = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2                         approximate = tanh

All implementations but `from_output` keep x, which is the caller's and costs nothing where something else
holds it. That is as little as recomputing y from x would keep, so there is no such implementation of a
GELU by itself: between two linear layers it pays, see the operator feed_forward.
"""

from __future__ import annotations

from dataclasses import replace

from ...activations.operator import EXAMPLES, SPACES, hyperparameters, make_inputs, work
from ...contract import OneOf, Operator

APPROXIMATE = OneOf(
    name="approximate",
    default="none",
    choices=("none", "tanh"),
    synonyms={"erf": "none", "exact": "none"},
    help="the exact form, or the one with a hyperbolic tangent (GPT-2's gelu_new)",
)

OPERATOR = Operator(
    name="gelu",
    title="Gaussian error linear units",
    hyperparameters=hyperparameters(APPROXIMATE),
    default="torch_gelu",
    make_inputs=make_inputs,
    work=work,
    examples=(*({**shape, "approximate": "tanh"} for shape in EXAMPLES[1:3]), *EXAMPLES),
    spaces={
        kind: replace(space, values={**space.values, "approximate": ("none", "tanh")})
        for kind, space in SPACES.items()
    },
)
