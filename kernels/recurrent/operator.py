"""Declarations that the operators lstm, gru and rnn share: hyperparameters, inputs and the least work."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from ..contract import Boolean, Hyperparameter, Inputs, Integer, Number, Problem, Space, Work
from ..contract.hyperparameter import DTYPE, MODE

if TYPE_CHECKING:
    import torch

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}

SIZES = (
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
        name="seq", aliases=("seq_len", "sequence_length"), default=50, maximum=2**24, help="time steps (T)"
    ),
    Integer(name="layers", aliases=("num_layers",), default=1, maximum=64, help="stacked layers (L)"),
    Boolean(name="bidirectional", default=False, help="run a second direction from the end (D = 2)"),
    Boolean(name="bias", default=True, help="with b_ih and b_hh"),
)
FORMS = (
    Number(
        name="dropout",
        default=0.0,
        implied=True,
        help="share of each layer's outputs, but the last's, that training drops at random",
    ),
    Boolean(name="batch_first", default=False, implied=True, help="x and y are [B, T, ...]"),
    Boolean(
        name="packed",
        aliases=("variable_length",),
        default=False,
        implied=True,
        help="a PackedSequence: lengths drawn from 1 to seq, the longest of them seq",
    ),
)


def hyperparameters(*own: Hyperparameter) -> tuple[Hyperparameter, ...]:
    """The hyperparameters of an operator in canonical order; `own` are those that the others do not have."""
    return (*SIZES, *FORMS, *own, DTYPE, MODE)


def directions(problem: Problem) -> int:
    """D: 2 when bidirectional, else 1."""
    return 2 if problem["bidirectional"] else 1


def outputs(problem: Problem) -> int:
    """P: features of h, those of the projection where there is one."""
    size: int = problem["hidden"]
    return (problem["projection"] or size) if problem.operator == "lstm" else size


def recurrent_weights(problem: Problem) -> int:
    """Elements of the matrices of one direction that every step needs: W_hh, and W_hr with a projection."""
    hidden, size = problem["hidden"], outputs(problem)
    return int(size * hidden * (GATES[problem.operator] + (size != hidden)))


def parameter_shapes(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter, with the names and in the order of torch's module; peepholes last."""
    hidden, size, rows = problem["hidden"], outputs(problem), GATES[problem.operator] * problem["hidden"]
    shapes: dict[str, tuple[int, ...]] = {}
    peepholes: dict[str, tuple[int, ...]] = {}
    for layer in range(problem["layers"]):
        features = problem["input"] if layer == 0 else size * directions(problem)
        for suffix in (f"_l{layer}", f"_l{layer}_reverse")[: directions(problem)]:
            shapes[f"weight_ih{suffix}"] = (rows, features)
            shapes[f"weight_hh{suffix}"] = (rows, size)
            if problem["bias"]:
                shapes[f"bias_ih{suffix}"] = (rows,)
                shapes[f"bias_hh{suffix}"] = (rows,)
            if size != hidden:
                shapes[f"weight_hr{suffix}"] = (size, hidden)
            peepholes[f"weight_peephole{suffix}"] = (3, hidden)
    return shapes | peepholes if problem.operator == "lstm" and problem["peepholes"] else shapes


def make_inputs(problem: Problem, device: str, seed: int) -> Inputs:
    """x, the initial states [L*D, B, P] and [L*D, B, H], and the parameters, uniform in +-1/sqrt(H)."""
    import torch

    dtype = getattr(torch, problem["dtype"])
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    def weight(*shape: int) -> torch.Tensor:
        bound = problem["hidden"] ** -0.5
        return torch.empty(shape, device=device).uniform_(-bound, bound, generator=generator).to(dtype)

    batch, seq = problem["batch"], problem["seq"]
    first = problem["batch_first"] and not problem["packed"]
    x: Any = normal(*((batch, seq) if first else (seq, batch)), problem["input"])
    rows = (problem["layers"] * directions(problem), batch)
    h = normal(*rows, outputs(problem))
    states = (h, normal(*rows, problem["hidden"])) if problem.operator == "lstm" else h
    parameters = {name: weight(*shape) for name, shape in parameter_shapes(problem).items()}
    if problem.operator == "rnn" and problem["nonlinearity"] == "relu" and problem["bias"]:
        states = h + _away_from_kinks(problem, x, parameters, generator)
    if problem["packed"]:
        x = _pack(x, torch.Generator().manual_seed(seed))
    return Inputs((x, states), parameters)


def _away_from_kinks(
    problem: Problem, x: torch.Tensor, parameters: dict[str, torch.Tensor], generator: torch.Generator
) -> torch.Tensor:
    """The mean states [L*D, 1, H] of a relu network whose x and parameters are changed to keep it from kinks.

    Where an argument is within a rounding error of zero its gradient hangs on that error, and everything
    before it on that gradient. Arguments stay around `margin` or -`margin`, eight times what the inputs make
    them spread by: x by I / 3H, an initial state by 1/3, and a fifth more through time. In the first layer an
    eighth of the units changes from one to the other with a sign that each step has in x.
    """
    import torch

    features, hidden = problem["input"], problem["hidden"]
    margin = 8 * (0.4 * features / hidden + 1 / 3) ** 0.5
    group, units = (features + 3) // 4, (hidden + 7) // 8
    height = 2 * margin * hidden**0.5 / group  # at which weights keep their usual size
    signs = x.new_empty(*x.shape[:2], 1).bernoulli_(generator=generator).mul_(2).sub_(1)
    x[..., :group] += height * signs
    states: list[torch.Tensor] = []
    below = x.new_zeros(features, dtype=torch.float32)  # the mean input of the layer
    for layer in range(problem["layers"]):
        means = []
        for suffix in (f"_l{layer}", f"_l{layer}_reverse")[: directions(problem)]:
            bias, weight = parameters[f"bias_ih{suffix}"], parameters[f"weight_ih{suffix}"]
            target = below.new_empty(hidden).bernoulli_(generator=generator).mul_(2).sub_(1).mul_(margin)
            mean = target.relu()
            if layer == 0:
                seen = weight[:, :group].float()
                weight[units:, :group] -= seen[units:].mean(1, keepdim=True).to(weight.dtype)
                sizes = seen[:units].abs()
                sizes *= target[:units, None] / height / sizes.sum(1, keepdim=True)
                weight[:units, :group] = sizes.to(weight.dtype)
                target[:units], mean[:units] = 0, margin / 2
            offset = weight.float() @ below + parameters[f"weight_hh{suffix}"].float() @ mean
            bias.copy_(target - offset - parameters[f"bias_hh{suffix}"].float())
            means.append(mean)
        states += means
        below = torch.cat(means)
    return torch.stack(states).unsqueeze(1).to(x.dtype)


def _pack(x: torch.Tensor, generator: torch.Generator) -> Any:
    """x [T, B, I] cut to lengths drawn from 1 to T, in any order, one of them T."""
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence

    seq, batch = x.shape[:2]
    lengths = torch.randint(1, seq + 1, (batch,), generator=generator)
    lengths[int(torch.randint(batch, (), generator=generator))] = seq
    return pack_padded_sequence(x, lengths, enforce_sorted=False)


def tokens(problem: Problem) -> int:
    """Steps of all sequences; their mean over the draws of lengths where these differ."""
    seq, batch = problem["seq"], problem["batch"]
    return int(seq + (batch - 1) * (seq + 1) // 2 if problem["packed"] else seq * batch)


def work(problem: Problem) -> Work:
    """The least that any implementation does: matrix products, tensors moved once, one launch a step."""
    hidden, size, cells = problem["hidden"], outputs(problem), problem["layers"] * directions(problem)
    shapes = parameter_shapes(problem)
    weights = sum(map(prod, shapes.values()))
    matrices = sum(
        prod(shape) for name, shape in shapes.items() if len(shape) == 2 and "peephole" not in name
    )
    training = problem["mode"] == "training"
    passes = 3 if training else 1  # backward has two products for each of forward
    element = ELEMENT_BYTES[problem["dtype"]]
    kept = {"lstm": 5 * hidden, "gru": 4 * hidden, "rnn": 0}[problem.operator] + size  # gates, c; h
    saved = kept * tokens(problem) * cells * element if training else 0
    moved = element * (weights + tokens(problem) * (problem["input"] + size * cells)) * passes + 2 * saved
    steps = problem["seq"] * problem["layers"] * (2 if training else 1)
    return Work(
        flops=2 * tokens(problem) * matrices * passes,
        moved_bytes=moved,
        saved_bytes=saved,
        launches=steps * directions(problem),
        steps=steps,
    )


# for tests and examples, and what random problems are drawn from
LAYERS: tuple[dict[str, Any], ...] = (
    {"hidden": 1, "batch": 1, "seq": 1},
    {"hidden": 33, "input": 7, "batch": 3, "seq": 5},
    {"hidden": 63, "input": 1, "batch": 1, "seq": 9, "bias": False},
    {"hidden": 5, "batch": 33, "seq": 4, "bidirectional": True},
    {"hidden": 8, "input": 3, "batch": 2, "seq": 6, "layers": 2, "bidirectional": True, "bias": False},
    {"hidden": 12, "input": 9, "batch": 3, "seq": 6, "layers": 2, "bidirectional": True, "packed": True},
    {"hidden": 9, "batch": 5, "seq": 7, "batch_first": True, "layers": 2, "dropout": 0.5},
)
LAST = {"hidden": 16, "batch": 4, "seq": 40, "layers": 3}
EXAMPLES = (*LAYERS, LAST)

FORM_VALUES = {
    "layers": ("1", "1", "2"),
    "bidirectional": ("false", "false", "false", "true"),
    "batch_first": ("false", "true"),
    "packed": ("false", "false", "false", "false", "false", "true"),
    "dropout": ("0.0", "0.0", "0.2"),
    "mode": ("training", "inference"),
}
SPACES = {
    "cpu": Space(
        sizes={"hidden": (8, 512), "batch": (1, 64), "seq": (1, 64)},
        sometimes={"input": (1, 512)},
        values=FORM_VALUES,
        max_flops=3e9,
    ),
    "cuda": Space(
        sizes={"hidden": (16, 4096), "batch": (1, 512), "seq": (1, 512)},
        sometimes={"input": (1, 4096)},
        values={**FORM_VALUES, "dtype": ("float32", "float16", "bfloat16")},
        max_flops=2e12,
    ),
}
