"""Layer functions made from a function of one direction, or of one time step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..contract import Problem
from ..runtime.names import name_of, named
from .layer import LayerFunction, States, Weights
from .recomputed import Recomputed

# (x [T, B, I], initial states, weights, reverse, lengths) to (y [T, B, P], last states): `LayerFunction`
# for one of its directions, whose states are h [B, P] and c [B, H]; with `reverse` it runs from the last
# time step to the first, and y stays in the order of time
DirectionFunction = Callable[[Tensor, States, Weights, bool, Tensor | None], tuple[Tensor, States]]

# (x_t [B, I], states) to the states after the step, h first
Step = Callable[[Tensor, States], States]

# autograd adds up the weights' gradients step by step in the weights' dtype: the error grows with the
# root of the length, and comes near the gate's bound, twice that of torch, at about these lengths
LONGEST_TRAINING = {"bfloat16": 8, "float16": 64}


def each_direction(function: DirectionFunction) -> LayerFunction:
    """The layer function that runs the directions one after another."""
    return partial(_each_direction, function)


def each_step(prepare: Callable[[Weights], Step]) -> LayerFunction:
    """The layer function that runs a Python loop over steps, whose backward pass autograd makes.

    `prepare` makes the step from the weights of a direction, once a call. It is kept by name in copies
    of the module, and so must be a function of a file.
    """
    return partial(_steps, name_of(prepare), prepare)


def inexact_autograd(problem: Problem) -> str | None:
    """Reason why a loop whose backward pass autograd makes is too inexact for a problem, or None."""
    longest = LONGEST_TRAINING.get(problem["dtype"])
    if problem["mode"] == "training" and longest is not None and problem["seq"] > longest:
        return (
            f"autograd sums the weights' gradients over {problem['seq']} steps in {problem['dtype']}, "
            f"too inexact beyond {longest} steps"
        )
    return None


def step_order(seq: int, reverse: bool) -> range:
    """The time steps in the order in which they are computed."""
    return range(seq - 1, -1, -1) if reverse else range(seq)


def valid_steps(lengths: Tensor, seq: int) -> Tensor:
    """Mask of the steps that each sequence has: bool [T, B, 1] of lengths [B]."""
    return (torch.arange(seq, device=lengths.device).unsqueeze(1) < lengths).unsqueeze(-1)


def _each_direction(
    function: DirectionFunction,
    x: Tensor,
    states: States,
    weights: tuple[Weights, ...],
    lengths: Tensor | None,
) -> tuple[Tensor, States]:
    if len(weights) == 1:
        y, last = function(x, tuple(state.squeeze(0) for state in states), weights[0], False, lengths)
        return y, tuple(state.unsqueeze(0) for state in last)
    outputs, ends = [], []
    for direction, own in enumerate(weights):
        initial = tuple(state[direction] for state in states)
        y, last = function(x, initial, own, direction == 1, lengths)
        outputs.append(y)
        ends.append(last)
    return torch.cat(outputs, -1), tuple(map(torch.stack, zip(*ends, strict=True)))


def _steps(
    name: str,
    prepare: Callable[[Weights], Step],
    x: Tensor,
    states: States,
    weights: tuple[Weights, ...],
    lengths: Tensor | None,
) -> tuple[Tensor, States]:
    if torch.compiler.is_compiling():
        return _RECOMPUTED(name, x, states, weights, lengths)
    return _each_direction(partial(_each_step, prepare), x, states, weights, lengths)


_RECOMPUTED = Recomputed("recurrent_steps", lambda name: each_step(named(name)))


def _each_step(
    prepare: Callable[[Weights], Step],
    x: Tensor,
    states: States,
    weights: Weights,
    reverse: bool,
    lengths: Tensor | None,
) -> tuple[Tensor, States]:
    """A state stays as it is in the steps that a sequence lacks, before its first as after its last."""
    step, steps = prepare(weights), x.unbind(0)
    valid = None if lengths is None else valid_steps(lengths, len(steps)).unbind(0)
    outputs: list[Tensor] = [x] * len(steps)
    for t in step_order(len(steps), reverse):
        after = step(steps[t], states)
        if valid is not None:
            after = tuple(torch.where(valid[t], new, old) for new, old in zip(after, states, strict=True))
        states = after
        outputs[t] = states[0]
    return torch.stack(outputs), tuple(state.to(x.dtype) for state in states)
