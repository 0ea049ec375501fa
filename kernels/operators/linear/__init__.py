"""A fully-connected layer, as `torch.nn.Linear`, with what usually follows it.

Dimensions: M rows, K in_features, N out_features.

    z = x W^T + b                                          # [M, N]
    a = activation(z)
    y = dropout(a) + r                                     # each of them where the problem has it

`gelu` is the exact one, x Phi(x), and `gelu_tanh` its approximation by a tanh. A module takes x [..., K]
and, with `residual`, r of the output's shape [..., N]; it returns y [..., N].
"""

from __future__ import annotations

from ...contract import Boolean, Inputs, Integer, Number, OneOf, Operator, Problem, Space, Work
from ...contract.hyperparameter import DTYPE, MODE

ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
# a rectifier's argument near zero has a gradient that hangs on a rounding error; arguments spread by 0.6
FAR_FROM_ZERO = 2.5


def make_inputs(problem: Problem, device: str, seed: int) -> Inputs:
    """x [M, K] and the residual [M, N], normal; parameters uniform in +-1/sqrt(K) as torch's."""
    import torch

    dtype = getattr(torch, problem["dtype"])
    generator = torch.Generator(device).manual_seed(seed)
    rows, inner, columns = problem["rows"], problem["in_features"], problem["out_features"]

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    def uniform(*shape: int) -> torch.Tensor:
        bound = inner**-0.5
        return torch.empty(shape, device=device).uniform_(-bound, bound, generator=generator)

    x = normal(rows, inner)
    parameters = {"weight": uniform(columns, inner).to(dtype)}
    if problem["bias"]:
        bias = uniform(columns)
        if problem["activation"] == "relu":
            signs = torch.empty_like(bias).bernoulli_(generator=generator).mul_(2).sub_(1)
            bias += FAR_FROM_ZERO * signs
        parameters["bias"] = bias.to(dtype)
    return Inputs((x, normal(rows, columns)) if problem["residual"] else (x,), parameters)


def work(problem: Problem) -> Work:
    """One product forwards and two backwards; each tensor moved once a product."""
    rows, inner, columns = problem["rows"], problem["in_features"], problem["out_features"]
    training = problem["mode"] == "training"
    element = ELEMENT_BYTES[problem["dtype"]]
    matrices = (rows * inner + inner * columns + rows * columns) * element
    extra = rows * columns * element * (problem["residual"] + (problem["activation"] != "none"))
    return Work(
        flops=2 * rows * inner * columns * (3 if training else 1),
        moved_bytes=(3 * matrices + 2 * extra) if training else matrices + extra,
        saved_bytes=saved_bytes(problem) if training else 0,
        launches=(4 if training else 1) + (1 + training) * operations(problem),
        steps=(2 if training else 1) + (1 + training) * operations(problem),
    )


def operations(problem: Problem) -> int:
    """Number of operations after the product and its bias, each a launch where nothing is fused."""
    return sum((problem["activation"] != "none", problem["dropout"] > 0, problem["residual"]))


def saved_bytes(problem: Problem, *, mask: bool = True) -> int:
    """Bytes kept for backward: y, what the activation's derivative needs, and the mask, a byte each.

    The derivative of relu needs its result, which is y where nothing follows, and the others' z.
    """
    elements = problem["rows"] * problem["out_features"]
    follows = problem["dropout"] > 0 or problem["residual"]
    needs = problem["activation"] != "none" and (problem["activation"] != "relu" or follows)
    masked = elements if mask and problem["dropout"] > 0 else 0
    return int(elements * (1 + needs) * ELEMENT_BYTES[problem["dtype"]] + masked)


OPERATOR = Operator(
    name="linear",
    title="fully-connected layers, with an activation, dropout and a residual",
    hyperparameters=(
        Integer(
            name="rows", aliases=("batch", "batch_size", "tokens"), maximum=2**31 - 1, help="rows of x (M)"
        ),
        Integer(name="in_features", aliases=("input_size",), maximum=2**24, help="features of x (K)"),
        Integer(
            name="out_features",
            aliases=("output_size",),
            default="=in_features",
            maximum=2**24,
            help="features of y (N)",
        ),
        Boolean(name="bias", default=True, help="with b"),
        OneOf(
            name="activation",
            default="none",
            implied=True,
            choices=ACTIVATIONS,
            synonyms={"swish": "silu", "identity": "none"},
            help="applied to the product with its bias",
        ),
        Boolean(name="residual", default=False, implied=True, help="a second argument is added at the end"),
        Number(
            name="dropout",
            default=0.0,
            implied=True,
            help="share of the activations that training drops at random, before the residual",
        ),
        DTYPE,
        MODE,
    ),
    default="torch_linear",
    make_inputs=make_inputs,
    work=work,
    examples=(
        {"rows": 1, "in_features": 1, "out_features": 1},
        {"rows": 33, "in_features": 63, "out_features": 17},
        {"rows": 5, "in_features": 40, "out_features": 31, "bias": False, "activation": "silu"},
        {"rows": 17, "in_features": 12, "out_features": 72, "activation": "relu"},
        {"rows": 3, "in_features": 129, "out_features": 9, "activation": "gelu_tanh", "residual": True},
        {"rows": 70, "in_features": 24, "out_features": 40, "activation": "gelu", "dropout": 0.25},
        {"rows": 64, "in_features": 8, "out_features": 16, "residual": True, "dropout": 0.5},
        {"rows": 129, "in_features": 97, "out_features": 161, "activation": "gelu", "residual": True},
    ),
    spaces={
        "cpu": Space(
            sizes={"rows": (1, 2048), "in_features": (8, 2048), "out_features": (8, 2048)},
            values={"activation": ("none", "none", "relu", "gelu"), "mode": ("training", "inference")},
            max_flops=3e9,
        ),
        "cuda": Space(
            sizes={"rows": (1, 65536), "in_features": (16, 16384), "out_features": (16, 65536)},
            values={
                "activation": ("none", "none", "relu", "gelu", "gelu_tanh", "silu"),
                "residual": ("false", "false", "true"),
                "dropout": ("0.0", "0.0", "0.0", "0.1"),
                "dtype": ("float32", "float16", "bfloat16", "bfloat16"),
                "mode": ("training", "inference"),
            },
            max_flops=1e12,
        ),
    },
)
