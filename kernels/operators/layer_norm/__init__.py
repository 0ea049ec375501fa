"""Layer normalisation over the last axis, as `torch.nn.LayerNorm` (Ba, Kiros and Hinton 2016).

Dimensions: R rows, H hidden (features of a row).

    m = mean(x), v = mean((x - m)^2)                       # [R] each, over the H features
    y = (x - m) / sqrt(v + eps) * weight + bias            # [R, H]

A module takes x [..., H] and returns y [..., H]. `affine` adds the weight [H], and `bias` the bias [H].
"""

from __future__ import annotations

from ...contract import Inputs, Operator, Problem, Work
from ...contract.hyperparameter import DTYPE, MODE
from ...norms.operator import AFFINE, BIAS, HIDDEN, ROWS, SPACES, epsilon, norm_work
from ...norms.operator import make_inputs as norm_inputs


def make_inputs(problem: Problem, device: str, seed: int) -> Inputs:
    """x [R, H], and the parameters, none of them near zero."""
    return norm_inputs(problem, device, seed, bias=problem["bias"])


def work(problem: Problem) -> Work:
    """The least that any implementation does: each tensor moved once."""
    return norm_work(problem, statistics=2)


OPERATOR = Operator(
    name="layer_norm",
    title="layer normalisation",
    hyperparameters=(ROWS, HIDDEN, AFFINE, BIAS, epsilon(1e-5), DTYPE, MODE),
    default="torch_layer_norm",
    make_inputs=make_inputs,
    work=work,
    examples=(
        {"rows": 1, "hidden": 1},
        {"rows": 5, "hidden": 33},
        {"rows": 7, "hidden": 40, "bias": False},
        {"rows": 9, "hidden": 65, "affine": False},
        {"rows": 33, "hidden": 768},
        {"rows": 64, "hidden": 1024},
    ),
    spaces=SPACES,
)
