"""Each gate on its own: eight matrix products and a dozen small operations per step (EcoRNN's "default").

The layer as a framework runs it that knows the cell only as separate operations; autograd makes the
backward pass. Nothing is fused and nothing is hoisted out of the time loop.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..contract import Device, Problem
from ._module import Layered, Weights, step_order
from ._work import Loop

# eight products, four additions, four activations and five operations on the states; kept are four
# gates, tanh(c), c, and h twice, in the list and in the output
work = Loop(launches=(21, 59), chain=(7, 12), states=(42, 105), held=2, held_wide=6).work
# autograd adds up the weights' gradients step by step in the weights' dtype: the error grows with the
# root of the length, and comes near the gate's bound, twice that of torch, at about these lengths
LONGEST_TRAINING = {"bfloat16": 8, "float16": 64}


def unsupported(problem: Problem, _device: Device) -> str | None:
    """Refuses to train over long sequences in 16 bits."""
    longest = LONGEST_TRAINING.get(problem["dtype"])
    if problem["mode"] == "training" and longest is not None and problem["seq"] > longest:
        return (
            f"autograd sums the weights' gradients over {problem['seq']} steps in {problem['dtype']}, "
            f"too inexact beyond {longest} steps"
        )
    return None


def build(problem: Problem) -> nn.Module:
    """The unfused layer for a problem."""
    return Layered(problem, layer)


def layer(x: Tensor, h: Tensor, c: Tensor, weights: Weights, reverse: bool) -> tuple[Tensor, Tensor, Tensor]:
    """One layer and direction, gate by gate; the cell state in float32 or better."""
    w_ih, w_hh = weights.w_ih.chunk(4), weights.w_hh.chunk(4)
    b_ih = weights.b_ih.chunk(4) if weights.b_ih is not None else (None,) * 4
    b_hh = weights.b_hh.chunk(4) if weights.b_hh is not None else (None,) * 4
    dtype = x.dtype
    wide = torch.promote_types(dtype, torch.float32)
    steps = x.unbind(0)
    outputs: list[Tensor] = [h] * len(steps)
    c = c.to(wide)
    for t in step_order(len(steps), reverse):
        i, f, g, o = (
            (linear(steps[t], w_ih[gate], b_ih[gate]) + linear(h, w_hh[gate], b_hh[gate])).to(wide)
            for gate in range(4)
        )
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = (o.sigmoid() * c.tanh()).to(dtype)
        outputs[t] = h
    return torch.stack(outputs), h, c.to(dtype)
