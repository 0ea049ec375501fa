"""A linear layer and the cross-entropy of its outputs: `nn.Linear` and `nn.CrossEntropyLoss` in one.

Dimensions: N rows, H hidden, V vocabulary, M rows with a label.

    z_n = W x_n + b                                        # [V], logits of row n
    s_n = log sum_v exp(z_nv)
    l_n = s_n - (1 - e) z_n,label_n - e mean_v(z_nv)       # 0 for rows without a label; e label_smoothing
    loss = sum_n l_n / M

A module takes x [N, H] and labels int64 [N], of which -100 stands for none, and returns the loss, a
scalar in the dtype of x (float32 under autocast). Without any label the loss is NaN and gradients are
zero, as torch's. A label that is neither -100 nor within [0, V) is an error; while CUDA graphs are
captured it makes the loss NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...contract import Boolean, Inputs, Integer, Number, Operator, Problem, Space, Work
from ...contract.hyperparameter import DTYPE, MODE

if TYPE_CHECKING:
    import torch

ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
IGNORED = -100


def labelled_rows(problem: Problem) -> int:
    """M: rows with a label, one at least."""
    rows: int = round(problem["rows"] * problem["labelled"])
    return max(1, rows)


def make_inputs(problem: Problem, device: str, seed: int) -> Inputs:
    """x, labels and the parameters; logits spread by 2, so that a softmax is neither flat nor one-hot."""
    import torch

    dtype = getattr(torch, problem["dtype"])
    generator = torch.Generator(device).manual_seed(seed)
    rows, hidden, vocabulary = problem["rows"], problem["hidden"], problem["vocabulary"]

    def normal(*shape: int, spread: float) -> torch.Tensor:
        return (torch.randn(shape, generator=generator, device=device) * spread).to(dtype)

    labels = torch.randint(vocabulary, (rows,), generator=generator, device=device)
    order = torch.randperm(rows, generator=generator, device=device)
    labels[order[labelled_rows(problem) :]] = IGNORED
    parameters = {"weight": normal(vocabulary, hidden, spread=2 * hidden**-0.5)}
    if problem["bias"]:
        parameters["bias"] = normal(vocabulary, spread=0.5)
    return Inputs((normal(rows, hidden, spread=1.0), labels), parameters)


def counted(problem: Problem, *, rows: int, products: int, passes: int, launches: int, saved: float) -> Work:
    """Work over so many rows: matrix products, and passes of reading or writing all logits.

    In training; in inference one product, at most two passes and a third of the launches are left.
    """
    hidden, vocabulary = problem["hidden"], problem["vocabulary"]
    training, element = problem["mode"] == "training", ELEMENT_BYTES[problem["dtype"]]
    products, passes = (products, passes) if training else (1, min(passes, 2))
    weights, inputs = vocabulary * hidden, rows * hidden
    return Work(
        flops=2.0 * rows * weights * products,
        moved_bytes=float(element * (products * (weights + inputs) + passes * rows * vocabulary)),
        saved_bytes=saved if training else 0,
        launches=launches if training else max(2, launches // 3),
        steps=launches if training else max(2, launches // 3),
    )


def work(problem: Problem) -> Work:
    """The least: three products over the rows with a label, logits never in memory."""
    rows = labelled_rows(problem)
    return counted(problem, rows=rows, products=3, passes=0, launches=6, saved=4.0 * rows)


OPERATOR = Operator(
    name="linear_cross_entropy",
    title="linear layer with the cross-entropy of its outputs",
    hyperparameters=(
        Integer(name="rows", aliases=("tokens",), maximum=2**24, help="rows of x, as tokens of a batch (N)"),
        Integer(
            name="hidden",
            aliases=("in_features", "hidden_size"),
            maximum=65536,
            help="features of a row (H)",
        ),
        Integer(
            name="vocabulary",
            aliases=("out_features", "vocab_size"),
            maximum=2**22,
            help="classes, as words of a vocabulary (V)",
        ),
        Boolean(name="bias", default=False, implied=True, help="add a bias to the logits"),
        Number(
            name="labelled",
            default=1.0,
            implied=True,
            minimum=0.001,
            help="share of the rows that have a label; the others' is -100 (0.15 for BERT)",
        ),
        Number(
            name="label_smoothing",
            default=0.0,
            implied=True,
            help="share of each label that all classes have equal parts of",
        ),
        DTYPE,
        MODE,
    ),
    default="torch_linear_cross_entropy",
    make_inputs=make_inputs,
    work=work,
    examples=(
        {"rows": 1, "hidden": 1, "vocabulary": 1},
        {"rows": 33, "hidden": 7, "vocabulary": 63},
        {"rows": 5, "hidden": 33, "vocabulary": 130, "bias": True},
        {"rows": 40, "hidden": 12, "vocabulary": 65, "label_smoothing": 0.1, "labelled": 0.6},
        {"rows": 17, "hidden": 9, "vocabulary": 5, "bias": True, "label_smoothing": 1.0},
        {"rows": 700, "hidden": 24, "vocabulary": 331, "bias": True, "labelled": 0.6},
    ),
    spaces={
        "cpu": Space(
            sizes={"rows": (16, 1024), "hidden": (16, 256), "vocabulary": (64, 8192)},
            values={"mode": ("training", "inference")},
            max_flops=3e9,
        ),
        "cuda": Space(
            sizes={"rows": (256, 16384), "hidden": (128, 4096), "vocabulary": (1024, 262144)},
            values={
                "labelled": ("1.0", "1.0", "0.15"),
                "dtype": ("float32", "bfloat16", "bfloat16"),
                "mode": ("training", "training", "inference"),
            },
            max_flops=4e12,
            max_bytes=2e10,
        ),
    },
)
