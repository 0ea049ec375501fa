"""Products of as many pairs of matrices as a batch has, as `torch.bmm`.

Dimensions: S batch, M rows, K inner, N columns.

    c_s = a_s b_s                                          # [M, N] for each s
    c_s = a_s b_s^T                                        # with `transposed`, b_s being [N, K]

A module takes a [S, M, K] and b [S, K, N], or [S, N, K] with `transposed`, and returns c [S, M, N]. It has
no parameters.
"""

from __future__ import annotations

from ...contract import Boolean, Inputs, Integer, Operator, Problem, Space, Work
from ...contract.hyperparameter import DTYPE, MODE

ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def make_inputs(problem: Problem, device: str, seed: int) -> Inputs:
    """a and b, normal."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    batch, rows, inner, columns = sizes(problem)
    last = (columns, inner) if problem["transposed"] else (inner, columns)
    shapes = ((batch, rows, inner), (batch, *last))
    dtype = getattr(torch, problem["dtype"])
    args = [torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes]
    return Inputs(tuple(args), {})


def sizes(problem: Problem) -> tuple[int, int, int, int]:
    """S, M, K and N."""
    return problem["batch"], problem["rows"], problem["inner"], problem["columns"]


def work(problem: Problem) -> Work:
    """One product forwards and two backwards; each matrix moved once a product."""
    batch, rows, inner, columns = sizes(problem)
    training = problem["mode"] == "training"
    products = 3 if training else 1
    element = ELEMENT_BYTES[problem["dtype"]]
    matrices = batch * (rows * inner + inner * columns + rows * columns) * element
    return Work(
        flops=2 * batch * rows * inner * columns * products,
        moved_bytes=matrices * products,
        saved_bytes=batch * rows * columns * element if training else 0,
        launches=products,
        steps=2 if training else 1,
    )


OPERATOR = Operator(
    name="batched_matmul",
    title="products of batches of matrices",
    hyperparameters=(
        Integer(name="batch", aliases=("batch_size",), maximum=2**24, help="pairs of matrices (S)"),
        Integer(name="rows", maximum=2**24, help="rows of a (M)"),
        Integer(name="inner", maximum=2**24, help="columns of a (K)"),
        Integer(name="columns", default="=rows", maximum=2**24, help="columns of the product (N)"),
        Boolean(name="transposed", default=False, implied=True, help="b is [S, N, K], and transposed"),
        DTYPE,
        MODE,
    ),
    default="torch_bmm",
    make_inputs=make_inputs,
    work=work,
    examples=(
        {"batch": 1, "rows": 1, "inner": 1, "columns": 1},
        {"batch": 3, "rows": 33, "inner": 17, "columns": 9},
        {"batch": 5, "rows": 8, "inner": 63, "columns": 40, "transposed": True},
        {"batch": 7, "rows": 1, "inner": 64, "columns": 33},
        {"batch": 4, "rows": 65, "inner": 70, "columns": 129, "transposed": True},
    ),
    spaces={
        "cpu": Space(
            sizes={"batch": (1, 64), "rows": (1, 512), "inner": (8, 512), "columns": (1, 512)},
            values={"transposed": ("false", "true"), "mode": ("training", "inference")},
            max_flops=2e9,
        ),
        "cuda": Space(
            sizes={"batch": (1, 512), "rows": (1, 2048), "inner": (16, 2048), "columns": (1, 2048)},
            values={
                "transposed": ("false", "true"),
                "dtype": ("float32", "float16", "bfloat16", "bfloat16"),
                "mode": ("training", "inference"),
            },
            max_flops=5e11,
        ),
    },
)
