"""cuBLAS, its bias included, then one generated kernel for all that follows; what dropout drops is replayed.

The product takes as long as torch's, and no tensor core waits while an epilogue computes: for large products,
and where the generated one is slower than cuBLAS. z is kept where it lies. Gradients are cuBLAS's after one
pointwise kernel, which sums up the bias's on its way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...contract import Device, Problem, Work
from ...matmul.backward import after_product
from ...matmul.epilogue import ACTIVATIONS, BIAS, DROPOUT, KEEP, RESIDUAL
from ...matmul.launch import Epilogue
from . import ELEMENT_BYTES
from ._fused import build_fused, fused_work, refused
from ._layouts import in_words
from ._passes import Engine


def work(problem: Problem) -> Work:
    """The fused layer's counts, with one launch more where something follows the product, which reads z."""
    follows, training = _follows(problem), problem["mode"] == "training"
    plain = fused_work(problem, launches=1 + follows)
    z = problem["rows"] * problem["out_features"] * ELEMENT_BYTES[problem["dtype"]]
    is_kept = training and problem["activation"] != "none"
    return replace(plain, moved_bytes=plain.moved_bytes + follows * z * (1 if is_kept else 2))


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike, and inference where nothing follows the product."""
    if reason := refused(problem, device):
        return reason
    if problem["mode"] == "inference" and not _follows(problem):
        return "has nothing to fuse: without activation and residual, inference is one product of cuBLAS's"
    return None


def build(problem: Problem) -> nn.Module:
    """The layer for a problem."""
    return build_fused(problem, Engine(forward))


def forward(x: Tensor, weight: Tensor, fused: Epilogue, dtype: torch.dtype) -> Tensor:
    """x [M, K] times W^T, W being [N, K], with the epilogue, in `dtype`."""
    values = iter(fused.values)
    given: dict[str, list[Any]] = {step.name: [next(values) for _ in step.parameters] for step in fused.steps}
    (z,) = given.get(KEEP.name) or (x.new_empty(x.size(0), weight.size(0)),)
    if BIAS.name in given:
        torch.addmm(given[BIAS.name][0], x, weight.t(), out=z)
    else:
        torch.mm(x, weight.t(), out=z)
    activation = next((name for name in ACTIVATIONS if name in given), "none")
    (residual,) = given.get(RESIDUAL.name) or (None,)
    seed, p, _ = given.get(DROPOUT.name) or (None, 0.0, 1.0)
    if activation == "none" and residual is None and seed is None:
        return z
    y = z if dtype == z.dtype and KEEP.name not in given else torch.empty_like(z, dtype=dtype)
    after_product(z, residual, seed, activation=activation, p=p, y=y)
    return y


def describe(problem: Problem, _device: Device) -> str:
    """The layout of each product, and why so."""
    return in_words(
        problem,
        "what follows the product is one kernel more, and none of its tiles waits for that",
        forward="x in rows, the weight as it lies, [N, K], and transposed on the way",
        x_gradient="both in rows, in a graph beside the next",
        weight_gradient="dz by columns, x in rows",
    )


def _follows(problem: Problem) -> bool:
    """Whether anything follows the product and its bias."""
    drops = problem["dropout"] > 0 and problem["mode"] == "training"
    return bool(problem["activation"] != "none" or drops or problem["residual"])
