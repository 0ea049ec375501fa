"""Declarations that the operators of norms share: hyperparameters, inputs, counts, spaces of problems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..contract import Boolean, Inputs, Integer, Number, Problem, Space, Work

if TYPE_CHECKING:
    import torch

ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
ROWS = Integer(name="rows", aliases=("tokens",), maximum=2**30, help="rows, each normalised alone (R)")
HIDDEN = Integer(
    name="hidden", aliases=("normalized_shape", "hidden_size"), maximum=2**20, help="features of a row (H)"
)
AFFINE = Boolean(name="affine", aliases=("elementwise_affine",), default=True, help="with a weight")
BIAS = Boolean(name="bias", default=True, implied=True, help="with a bias, where a layer norm is affine")


def epsilon(default: float) -> Number:
    """The hyperparameter eps."""
    return Number(name="eps", default=default, implied=True, help="added to the variance or mean square")


SPACES = {
    "cpu": Space(
        sizes={"rows": (16, 4096), "hidden": (32, 2048)},
        values={"mode": ("training", "inference")},
        max_flops=1e9,
    ),
    "cuda": Space(
        sizes={"rows": (16, 131072), "hidden": (64, 16384)},
        values={"dtype": ("float32", "float16", "bfloat16"), "mode": ("training", "inference")},
        max_flops=2e11,
        max_bytes=8e9,
    ),
}


def make_inputs(problem: Problem, device: str, seed: int, *, tensors: int = 1, bias: bool = False) -> Inputs:
    """Normal tensors [R, H] whose mean is not 0, weights in +-[0.5, 1.5], and biases in [-0.5, 0.5]."""
    import torch

    dtype = getattr(torch, problem["dtype"])
    generator = torch.Generator(device).manual_seed(seed)

    def drawn(low: float, high: float) -> torch.Tensor:
        return torch.empty(problem["hidden"], device=device).uniform_(low, high, generator=generator)

    shape = problem["rows"], problem["hidden"]
    rows = [torch.randn(shape, generator=generator, device=device).add_(0.3) for _ in range(tensors)]
    parameters = {}
    if problem["affine"]:
        sign = drawn(-1, 1).sign_()
        parameters["weight"] = (drawn(0.5, 1.5) * sign).to(dtype)
        if bias:
            parameters["bias"] = drawn(-0.5, 0.5).to(dtype)
    return Inputs(tuple(one.to(dtype) for one in rows), parameters)


def counted(
    problem: Problem, *, saved_bytes: float, moved: tuple[int, int], launches: tuple[int, int]
) -> Work:
    """Work from tensors of [R, H] and launches in (forward, backward), and the bytes kept of each row."""
    training = problem["mode"] == "training"
    elements = problem["rows"] * problem["hidden"]
    count = launches[0] + training * launches[1]
    return Work(
        flops=elements * (8 + training * 16),
        moved_bytes=elements * ELEMENT_BYTES[problem["dtype"]] * (moved[0] + training * moved[1]),
        saved_bytes=problem["rows"] * saved_bytes if training else 0,
        launches=count,
        steps=count,
    )


def norm_work(problem: Problem, *, statistics: int, launches: tuple[int, int] = (1, 2)) -> Work:
    """Counts of a norm that keeps x, which is an argument, and the output, and statistics of each row."""
    kept = problem["hidden"] * ELEMENT_BYTES[problem["dtype"]] + 4 * statistics
    return counted(problem, saved_bytes=kept, moved=(2, 3), launches=launches)


def added_work(problem: Problem, *, mask_bits: int, launches: tuple[int, int], kept: int = 2) -> Work:
    """Counts of a dropout, addition and norm that keeps y, or two tensors with z, and bits of a mask."""
    drops = problem["dropout"] > 0
    bits = kept * 8 * ELEMENT_BYTES[problem["dtype"]] + (mask_bits if drops else 0)
    statistics = 4 if problem["norm"] == "rms" or kept == 1 else 8
    training = problem["mode"] == "training"
    forward = 3 + ((training and kept == 2) or problem["prenorm"])
    backward = 3 + problem["prenorm"] + drops
    row_bytes = problem["hidden"] * bits / 8 + statistics
    return counted(problem, saved_bytes=row_bytes, moved=(forward, backward), launches=launches)
