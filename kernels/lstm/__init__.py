"""Long short-term memory, as `torch.nn.LSTM` (Hochreiter and Schmidhuber 1997, with forget gates).

Dimensions: T seq, B batch, I input, H hidden, L layers, D directions (2 when bidirectional).

    a = x_t W_ih^T + b_ih + h_{t-1} W_hh^T + b_hh          # [B, 4H], gates in the order i, f, g, o
    i, f, g, o = sigmoid(a_i), sigmoid(a_f), tanh(a_g), sigmoid(a_o)
    c_t = f c_{t-1} + i g
    h_t = o tanh(c_t)

A module takes x [T, B, I] and optionally (h_0, c_0), each [L*D, B, H], and returns
y [T, B, D*H] and (h_T, c_T). Unbatched x [T, I] works as in torch.
"""

from __future__ import annotations

from math import prod

from ..contract import Boolean, Inputs, Integer, Operator, Problem, Work
from ..contract.hyperparameter import DTYPE, MODE

HYPERPARAMETERS = (
    Integer(name="hidden", aliases=("hidden_size",), maximum=65536, help="features of the hidden state (H)"),
    Integer(
        name="input",
        aliases=("input_size",),
        default="=hidden",
        maximum=65536,
        help="features of the input (I)",
    ),
    Integer(name="batch", aliases=("batch_size",), maximum=1048576, help="sequences at once (B)"),
    Integer(
        name="seq", aliases=("seq_len", "sequence_length"), default=50, maximum=65535, help="time steps (T)"
    ),
    Integer(name="layers", aliases=("num_layers",), default=1, maximum=64, help="stacked layers (L)"),
    Boolean(name="bidirectional", default=False, help="run a second direction from the end (D = 2)"),
    Boolean(name="bias", default=True, help="with b_ih and b_hh"),
    DTYPE,
    MODE,
)

ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def make_inputs(problem: Problem, device: str, seed: int) -> Inputs:
    """x [T, B, I], (h_0, c_0) [L*D, B, H] and the parameters of `nn.LSTM`, uniform in +-1/sqrt(H)."""
    import torch

    dtype = getattr(torch, problem["dtype"])
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    def weight(*shape: int) -> torch.Tensor:
        bound = problem["hidden"] ** -0.5
        return torch.empty(shape, device=device).uniform_(-bound, bound, generator=generator).to(dtype)

    state = (problem["layers"] * directions(problem), problem["batch"], problem["hidden"])
    args = (normal(problem["seq"], problem["batch"], problem["input"]), (normal(*state), normal(*state)))
    return Inputs(args, {name: weight(*shape) for name, shape in parameter_shapes(problem).items()})


def directions(problem: Problem) -> int:
    """D: 2 when bidirectional, else 1."""
    return 2 if problem["bidirectional"] else 1


def parameter_shapes(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter, with the names and in the order of `nn.LSTM`."""
    hidden: int = problem["hidden"]
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(problem["layers"]):
        features = problem["input"] if layer == 0 else hidden * directions(problem)
        for suffix in ("", "_reverse")[: directions(problem)]:
            shapes[f"weight_ih_l{layer}{suffix}"] = (4 * hidden, features)
            shapes[f"weight_hh_l{layer}{suffix}"] = (4 * hidden, hidden)
            if problem["bias"]:
                shapes[f"bias_ih_l{layer}{suffix}"] = (4 * hidden,)
                shapes[f"bias_hh_l{layer}{suffix}"] = (4 * hidden,)
    return shapes


def work(problem: Problem) -> Work:
    """The least that any implementation does: matrix products, tensors moved once, one launch a step."""
    hidden, tokens = problem["hidden"], problem["seq"] * problem["batch"]
    cells = problem["layers"] * directions(problem)
    shapes = parameter_shapes(problem).values()
    weights = sum(prod(shape) for shape in shapes)
    matrices = sum(prod(shape) for shape in shapes if len(shape) == 2)
    training = problem["mode"] == "training"
    passes = 3 if training else 1  # backward has two products for each of forward
    element = ELEMENT_BYTES[problem["dtype"]]
    saved = 6 * hidden * tokens * cells * element if training else 0  # gates, c and h
    moved = element * (weights + tokens * (problem["input"] + hidden * cells)) * passes + 2 * saved
    steps = problem["seq"] * problem["layers"] * (2 if training else 1)
    return Work(
        flops=2 * tokens * matrices * passes,
        moved_bytes=moved,
        saved_bytes=saved,
        launches=steps * directions(problem),
        steps=steps,
    )


OPERATOR = Operator(
    name="lstm",
    title="long short-term memory layers",
    hyperparameters=HYPERPARAMETERS,
    default="torch_lstm",
    make_inputs=make_inputs,
    work=work,
)
