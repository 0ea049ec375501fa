"""`fused` that keeps y in place of x where the weights are such that y determines x.

Backward then rebuilds x-hat = (y - bias) / weight. Where the layer after the norm keeps y anyway, as a
linear layer does, x is free as soon as y is there: 2 bytes an element less in 16 bits.

Rounding of y grows by up to 1 + |bias / weight| in x-hat, and a weight of zero leaves nothing of
x-hat in y. A clamp would be wrong there, and room for the columns concerned would have to be there for
all of them, because the host does not know their number. So what is kept is decided for each call: y,
where all weights are normal numbers and no bias is more than twice its weight, and x elsewhere, as in
fused. The host waits for this answer once for each version of the parameters, of which a step of the
optimizer makes one. Calls that are captured into a CUDA graph cannot wait, and replays may find other
weights: they keep x. Weights changed past autograd's count of versions (`weight.data`) are found out in
backward: its gradients are then NaN, never guesses. As y is kept, it must not be changed in place.
"""

from __future__ import annotations

from torch import nn

from ...contract import Device, Problem, Work
from ...norms.fused import FromOutput
from ...norms.module import norm_module
from ...norms.operator import norm_work
from ...norms.support import refused_by_triton, refused_from_output


def unsupported(problem: Problem, device: Device) -> str | None:
    """Refuses what Triton's kernels refuse alike, and rows of one feature."""
    return refused_by_triton(problem, device) or refused_from_output(problem)


def build(problem: Problem) -> nn.Module:
    """The norm for a problem."""
    return norm_module(problem, FromOutput(rms=False))


def work(problem: Problem) -> Work:
    """The operator's counts with one number a row."""
    return norm_work(problem, statistics=1)
