"""Inputs, conflicts and the least work of a problem."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from ...contract import Inputs, Problem, Work

if TYPE_CHECKING:
    import torch

ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def conflict(values: Mapping[str, Any]) -> str | None:
    """Conflict in words, or None: heads divide the features, and a layer norm stands inside the tanh."""
    if values["hidden"] % values["heads"]:
        return f"heads={values['heads']}: expected a divisor of hidden={values['hidden']}."
    if values["layer_norm"] and values["score"] != "additive":
        return (
            f"layer_norm=true stands inside the tanh of score=additive, and score={values['score']} has none."
        )
    return None


def parameter_shapes(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter, in the order of the module's state dict."""
    hidden, heads = problem["hidden"], problem["heads"]
    if problem["score"] == "dot":
        return {}
    if problem["score"] == "general":
        return {"query.weight": (hidden, hidden)}
    shapes: dict[str, tuple[int, ...]] = {
        "query.weight": (hidden, hidden),
        "query.bias": (hidden,),
        "key.weight": (hidden, hidden),
        "score.weight": (heads, hidden // heads),
    }
    if problem["layer_norm"]:
        shapes |= {"norm.weight": (hidden // heads,), "norm.bias": (hidden // heads,)}
    return shapes


def make_inputs(problem: Problem, device: str, seed: int) -> Inputs:
    """Query, memory, with `lengths` these too, and parameters, so that scores spread by about 1.

    Lengths are drawn from 1 to S, one of them is S, and of three or more one is 0.
    """
    import torch

    dtype = getattr(torch, problem["dtype"])
    generator = torch.Generator(device).manual_seed(seed)
    hidden, batch = problem["hidden"], problem["batch"]
    width = hidden // problem["heads"]
    # a product of q and a memory of normal distribution would spread by sqrt(D), and the softmax be 0 or 1
    spread = 1.0 if problem["score"] == "additive" else width**-0.5

    def normal(length: int) -> torch.Tensor:
        axes = (batch, length) if problem["layout"] == "batch_first" else (length, batch)
        return torch.randn((*axes, hidden), generator=generator, device=device)

    def parameter(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        scale = {"score.weight": 3 * width**-0.5, "norm.weight": 0.5}.get(name, hidden**-0.5)
        drawn = torch.empty(shape, device=device).uniform_(-scale, scale, generator=generator)
        return (drawn + (name == "norm.weight")).to(dtype)

    args = ((normal(problem["target"]) * spread).to(dtype), normal(problem["source"]).to(dtype))
    parameters = {name: parameter(name, shape) for name, shape in parameter_shapes(problem).items()}
    if problem["lengths"]:
        lengths = torch.randint(
            1, problem["source"] + 1, (batch,), generator=torch.Generator().manual_seed(seed)
        )
        lengths[0] = problem["source"]
        lengths[2:3] = 0
        return Inputs((*args, lengths.to(device)), parameters)
    return Inputs(args, parameters)


def elements(problem: Problem) -> int:
    """B * T * S * H: elements of the tensor inside the tanh."""
    return prod(int(problem[name]) for name in ("batch", "target", "source", "hidden"))


def element_bytes(problem: Problem) -> int:
    """Bytes of one element of the problem's dtype."""
    return ELEMENT_BYTES[problem["dtype"]]


def features(problem: Problem, *, of_query: int = 0, of_memory: int = 0, weights: int = 0) -> int:
    """Bytes of so many tensors [B, T, H], [B, S, H] and [B, N, T, S] of the problem's dtype."""
    batch, hidden, target, source = (problem[name] for name in ("batch", "hidden", "target", "source"))
    rows = of_query * target + of_memory * source
    pairs = weights * problem["heads"] * target * source
    return int(element_bytes(problem) * batch * (rows * hidden + pairs))


def work(problem: Problem) -> Work:
    """The least: projections, scores, softmax and context, their tensors moved once, a launch for each."""
    training = problem["mode"] == "training"
    passes = 3 if training else 1  # backward has two products for each of forward
    additive = problem["score"] == "additive"
    rows = {"additive": problem["target"] + problem["source"], "general": problem["target"], "dot": 0}
    projections = 2 * problem["hidden"] ** 2 * problem["batch"] * rows[problem["score"]]
    parameters = sum(map(prod, parameter_shapes(problem).values())) * element_bytes(problem)
    projected = {"additive": (1, 1), "general": (1, 0), "dot": (0, 0)}[problem["score"]]
    kept = features(problem, of_query=projected[0], of_memory=projected[1])
    outputs = features(problem, of_query=1, weights=1)
    arguments = features(problem, of_query=1, of_memory=1)
    return Work(
        # of the score: add, tanh, multiply, add; of a product: multiply, add. And the context
        flops=passes * (projections + elements(problem) * ((4 if additive else 2) + 2)),
        moved_bytes=passes * (arguments + parameters + 2 * kept + 2 * outputs),
        saved_bytes=kept + outputs if training else 0,
        launches=(5 if additive else 4) * passes,
        steps=4 * (2 if training else 1),
    )
