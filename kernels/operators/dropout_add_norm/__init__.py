"""A residual connection with dropout before it and a norm behind it, as in every layer of a transformer.

Dimensions: R rows, H hidden (features of a row).

    z = residual + dropout(x)                              # [R, H]; what is kept is multiplied by 1 / (1 - p)
    y = norm(z)                                            # [R, H]; torch.nn.LayerNorm or torch.nn.RMSNorm

A module takes x and residual [..., H] and returns y [..., H]; with `prenorm`, where z goes on as the next
residual, (y, z). It has the parameters of the norm: with `affine` a weight [H], and with `bias` a layer
norm's bias [H]. `dropout` acts in training alone.
"""

from __future__ import annotations

from dataclasses import replace

from ...contract import Boolean, Inputs, Number, OneOf, Operator, Problem, Work
from ...contract.hyperparameter import DTYPE, MODE
from ...norms.operator import AFFINE, BIAS, HIDDEN, ROWS, SPACES, added_work, epsilon
from ...norms.operator import make_inputs as norm_inputs


def make_inputs(problem: Problem, device: str, seed: int) -> Inputs:
    """x and residual [R, H], and the parameters, none of them near zero."""
    bias = problem["bias"] and problem["norm"] == "layer"
    return norm_inputs(problem, device, seed, tensors=2, bias=bias)


def work(problem: Problem) -> Work:
    """Counts of torch's operations where they are fused, with z, y and a mask of bytes kept."""
    return added_work(problem, mask_bits=8, launches=(2, 3))


OPERATOR = Operator(
    name="dropout_add_norm",
    title="dropout, residual addition and normalisation",
    hyperparameters=(
        ROWS,
        HIDDEN,
        Number(name="dropout", aliases=("p",), default=0.1, help="share of x that training drops at random"),
        OneOf(name="norm", default="layer", choices=("layer", "rms"), help="the norm behind the addition"),
        Boolean(name="prenorm", default=False, help="return z, the next residual, beside y"),
        AFFINE,
        BIAS,
        epsilon(1e-5),
        DTYPE,
        MODE,
    ),
    default="torch_dropout_add_norm",
    make_inputs=make_inputs,
    work=work,
    examples=(
        {"rows": 1, "hidden": 17},
        {"rows": 5, "hidden": 33, "dropout": 0.0, "prenorm": True},
        {"rows": 6, "hidden": 40, "bias": False, "prenorm": True},
        {"rows": 9, "hidden": 65, "affine": False, "dropout": 0.0},
        {"rows": 7, "hidden": 130, "norm": "rms"},
        {"rows": 33, "hidden": 96, "norm": "rms", "prenorm": True, "dropout": 0.5},
        {"rows": 48, "hidden": 768},
    ),
    spaces={
        name: replace(
            space,
            values={
                **space.values,
                "dropout": ("0.1", "0.1", "0.0"),
                "norm": ("layer", "rms"),
                "prenorm": ("false", "true"),
            },
        )
        for name, space in SPACES.items()
    },
)
