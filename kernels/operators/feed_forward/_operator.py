"""Declarations of the operator: hyperparameters, inputs, and problems for tests and for measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...contract import Boolean, Inputs, Integer, Number, OneOf, Problem, Space
from ...contract.hyperparameter import DTYPE, MODE

if TYPE_CHECKING:
    import torch

HYPERPARAMETERS = (
    Integer(name="rows", aliases=("tokens",), maximum=2**31, help="rows of x, of all batch dimensions (N)"),
    Integer(name="hidden", aliases=("hidden_size", "d_model"), maximum=65536, help="features of x and y (H)"),
    Integer(
        name="inner",
        aliases=("dim_feedforward", "intermediate_size"),
        maximum=2**18,
        help="features between the products (F), most often 4 times hidden",
    ),
    OneOf(
        name="activation",
        default="gelu",
        choices=("gelu", "gelu_tanh", "relu", "silu"),
        synonyms={"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "swish": "silu"},
        help="what is applied between the products",
    ),
    Number(
        name="dropout",
        default=0.0,
        implied=True,
        help="share of the activation's outputs that training drops at random",
    ),
    Boolean(name="bias", default=True, help="with b1 and b2"),
    DTYPE,
    MODE,
)

EXAMPLES: tuple[dict[str, Any], ...] = (
    {"rows": 1, "hidden": 1, "inner": 1},
    {"rows": 33, "hidden": 7, "inner": 65, "activation": "gelu_tanh"},
    {"rows": 17, "hidden": 12, "inner": 40, "activation": "relu", "dropout": 0.1},
    {"rows": 20, "hidden": 24, "inner": 131, "activation": "silu", "bias": False},
    {"rows": 50, "hidden": 16, "inner": 72, "activation": "relu", "bias": False},
    {"rows": 9, "hidden": 10, "inner": 300, "dropout": 0.5},
    {"rows": 200, "hidden": 40, "inner": 160},
)

SPACES = {
    "cpu": Space(
        sizes={"rows": (8, 1024), "hidden": (16, 512), "inner": (32, 2048)},
        values={"activation": ("gelu", "gelu_tanh", "relu", "silu"), "mode": ("training", "inference")},
        max_flops=3e9,
    ),
    "cuda": Space(
        sizes={"rows": (16, 65536), "hidden": (64, 8192), "inner": (128, 32768)},
        values={
            "activation": ("gelu", "gelu", "gelu_tanh", "relu", "silu"),
            "dropout": ("0.0", "0.0", "0.1"),
            "dtype": ("float32", "float16", "bfloat16", "bfloat16"),
            "mode": ("training", "training", "inference"),
        },
        max_flops=5e12,
        max_bytes=8e9,  # the float64 reference keeps ten tensors of [N, F]
    ),
}


def make_inputs(problem: Problem, device: str, seed: int) -> Inputs:
    """x [N, H] of unit variance, weights that keep h and y near that, and biases.

    With relu the biases b1 are +-2.5: where h is near zero its gradient hangs on a rounding error. h spreads
    by about one around them, so that some units still are on in some rows and off in others.
    """
    import torch

    dtype = getattr(torch, problem["dtype"])
    generator = torch.Generator(device).manual_seed(seed)
    rows, hidden, inner = problem["rows"], problem["hidden"], problem["inner"]

    def uniform(*shape: int, bound: float) -> torch.Tensor:
        return torch.empty(shape, device=device).uniform_(-bound, bound, generator=generator)

    x = torch.randn((rows, hidden), generator=generator, device=device)
    parameters = {
        "linear1.weight": uniform(inner, hidden, bound=(3 / hidden) ** 0.5),
        "linear1.bias": uniform(inner, bound=0.5),
        "linear2.weight": uniform(hidden, inner, bound=(3 / inner) ** 0.5),
        "linear2.bias": uniform(hidden, bound=0.5),
    }
    if problem["activation"] == "relu":
        parameters["linear1.bias"] = 2.5 * parameters["linear1.bias"].sign()
    wanted = {name: one for name, one in parameters.items() if problem["bias"] or "bias" not in name}
    return Inputs((x.to(dtype),), {name: one.to(dtype) for name, one in wanted.items()})
