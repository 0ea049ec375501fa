"""Both passes of the layer whose product is fused with what follows it, apart from autograd.

Kept for backward is z alone, in the layer's dtype: dropout is replayed from its seed, and the activation
is not kept beside its argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...matmul.backward import dropout_scale, row_sums, through_epilogue
from ...matmul.epilogue import ACTIVATIONS, BIAS, DROPOUT, KEEP, RESIDUAL, Step
from ...matmul.launch import Epilogue
from ._streams import side_by_side

Product = Callable[[Tensor, Tensor], Tensor]  # a [M, K] and b [K, N] to a b


class Engine(NamedTuple):
    """Functions that compute the products, each of a file, because copies of a module keep them by name."""

    forward: Callable[[Tensor, Tensor, Epilogue, torch.dtype], Tensor]  # x [M, K], W [N, K] to [M, N]
    x_gradient: Product = torch.mm  # dz [M, N] W [N, K]
    weight_gradient: Product = torch.mm  # dz^T [N, M] x [M, K]

    @property
    def names(self) -> str:
        """Places of the functions, by which operators of torch.library know them."""
        return " ".join(f"{one.__module__ or 'torch'}:{one.__name__}" for one in self)


class Options(NamedTuple):
    """Options of one call of the layer, beside its tensors."""

    engine: Engine
    activation: str
    p: float
    needs_z: bool  # by the activation's derivative, and not to be had from y
    dtype: torch.dtype  # of y


def forward_pass(
    options: Options, given: tuple[Tensor | None, ...], seed: Tensor | None, *, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """y [M, N] of x, W, bias and residual; with `keep` also what the activation's derivative needs."""
    x, weight, bias, residual = given
    assert x is not None
    assert weight is not None
    steps: list[Step] = []
    values: list[Any] = []
    kept = None
    if bias is not None:
        steps, values = [BIAS], [bias.contiguous()]
    if keep and options.needs_z:
        kept = torch.empty(x.size(0), weight.size(0), dtype=x.dtype, device=x.device)
        steps, values = [*steps, KEEP], [*values, kept]
    if options.activation != "none":
        steps.append(ACTIVATIONS[options.activation])
    if options.p:
        steps, values = [*steps, DROPOUT], [*values, seed, options.p, dropout_scale(options.p)]
    if residual is not None:
        steps, values = [*steps, RESIDUAL], [*values, residual]
    fused = Epilogue(tuple(steps), tuple(values))
    y = options.engine.forward(x, weight, fused, options.dtype)
    return y, y if keep and options.activation == "relu" and not options.needs_z else kept


def parameter_and_input_gradients(
    options: Options, dy: Tensor, saved: tuple[Tensor | None, ...], wanted: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """dx, dW and db where they are wanted, of dy and of x, W, what was kept, and the seed.

    One pointwise pass, a product for x, one for the weight, and a sum for the bias. In a graph the product
    for x and what the parameters need are branches side by side.
    """
    x, weight, kept, seed = saved
    assert x is not None
    assert weight is not None
    for_x, for_weight, for_bias = wanted
    engine, dtype = options.engine, x.dtype
    dz, sums = through_epilogue(
        dy, kept, seed, activation=options.activation, p=options.p, dtype=dtype, for_bias=for_bias
    )

    def parameters() -> tuple[Tensor | None, Tensor | None]:
        return (
            engine.weight_gradient(dz.t(), x) if for_weight else None,
            None if sums is None else row_sums(sums, dz.dtype),
        )

    if for_x and (for_weight or for_bias):
        flops = 4.0 * weight.numel() * len(x)
        (dw, db), dx = side_by_side(parameters, lambda: engine.x_gradient(dz, weight), dz, flops)
    else:
        dw, db = parameters()
        dx = engine.x_gradient(dz, weight) if for_x else None
    return dx, dw, db
