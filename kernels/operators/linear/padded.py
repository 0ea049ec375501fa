"""Features padded with zeros to multiples of 8, so that cuBLAS reads 16 bytes at once.

A row of 16-bit elements whose number is not a multiple of 8 starts at an address that tensor cores' loads
cannot take, and cuBLAS falls back to slow kernels. x, the weight and the bias are copied at each call,
forwards; x's gradient and the weight's gradient are products of the padded matrices, cut afterwards.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn
from torch.nn.functional import linear, pad

from ...contract import Device, Problem, Work
from . import ELEMENT_BYTES
from . import work as plain_work
from ._layouts import in_words
from ._module import Linear

MULTIPLE = 8


def work(problem: Problem) -> Work:
    """The operator's counts with the copies, which are kept for backward."""
    plain = plain_work(problem)
    rows, inner, columns = problem["rows"], _up(problem["in_features"]), _up(problem["out_features"])
    element, training = ELEMENT_BYTES[problem["dtype"]], problem["mode"] == "training"
    copies = (rows * inner if inner != problem["in_features"] else 0) + inner * columns
    cut = rows * columns if columns != problem["out_features"] else 0
    return replace(
        plain,
        moved_bytes=plain.moved_bytes + 2 * (copies + cut) * element * (2 if training else 1),
        saved_bytes=plain.saved_bytes + (copies * element if training else 0),
        launches=plain.launches + (8 if training else 4),
        steps=plain.steps + (4 if training else 2),
    )


def unsupported(problem: Problem, _device: Device) -> str | None:
    """Refuses sizes that need no padding."""
    if problem["in_features"] % MULTIPLE == 0 and problem["out_features"] % MULTIPLE == 0:
        return f"in_features and out_features are multiples of {MULTIPLE} already: there is nothing to pad"
    return None


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return Linear(problem, padded)


def describe(problem: Problem, _device: Device) -> str:
    """The layout of each product, and why so."""
    return in_words(
        problem,
        "so that rows start where 16 bytes can be read at once",
        forward="x in rows, the weight as it lies, both copied with features filled up to multiples of 8",
        x_gradient="of the padded matrices, both in rows, cut afterwards",
        weight_gradient="of the padded matrices, dz by columns, cut afterwards",
    )


def padded(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., K] W^T + b [..., N]; see `Linear`."""
    columns, inner = weight.shape
    more_inner, more_columns = _up(inner) - inner, _up(columns) - columns
    if not x.dim() or x.size(-1) != inner or not (more_inner or more_columns):
        return linear(x, weight, bias)  # raises, or needs no padding
    wide = pad(weight, (0, more_inner, 0, more_columns))
    row = pad(bias, (0, more_columns)) if bias is not None and more_columns else bias
    z = linear(pad(x, (0, more_inner)) if more_inner else x, wide, row)
    return z[..., :columns].contiguous() if more_columns else z


def _up(size: int) -> int:
    """The next multiple."""
    return -(-size // MULTIPLE) * MULTIPLE
