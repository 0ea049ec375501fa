"""Normalisation by the root mean square over the last axis, as `torch.nn.RMSNorm` (Zhang and Sennrich 2019).

Dimensions: R rows, H hidden (features of a row).

    y = x / sqrt(mean(x^2) + eps) * weight                 # [R, H], the mean over the H features

A module takes x [..., H] and returns y [..., H]. `affine` adds the weight [H].
"""

from __future__ import annotations

from ...contract import Operator, Problem, Work
from ...contract.hyperparameter import DTYPE, MODE
from ...norms.operator import AFFINE, HIDDEN, ROWS, SPACES, epsilon, make_inputs, norm_work


def work(problem: Problem) -> Work:
    """The least that any implementation does: each tensor moved once."""
    return norm_work(problem, statistics=1)


OPERATOR = Operator(
    name="rms_norm",
    title="root-mean-square normalisation",
    hyperparameters=(ROWS, HIDDEN, AFFINE, epsilon(1e-6), DTYPE, MODE),
    default="torch_rms_norm",
    make_inputs=make_inputs,
    work=work,
    # one feature is left out: its gradient is eps alone, and rounding hides it
    examples=(
        {"rows": 1, "hidden": 17},
        {"rows": 5, "hidden": 33},
        {"rows": 9, "hidden": 65, "affine": False},
        {"rows": 33, "hidden": 768},
        {"rows": 64, "hidden": 1024},
    ),
    spaces=SPACES,
)
