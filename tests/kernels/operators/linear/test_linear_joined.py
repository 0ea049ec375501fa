"""Several linear layers as one product: values and derivatives of both orders, also of some of them."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from kernel_selector.kernels.operators.linear._joined import joined


def test_the_product_is_differentiated_twice_as_products_of_their_own() -> None:
    layers = [nn.Linear(3, columns, dtype=torch.float64) for columns in (2, 5, 1)]
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    weights, biases = [one.weight for one in layers], [one.bias for one in layers]
    for more in ((), biases):
        inputs = (x, *weights, *more)
        for used in (slice(None), slice(1, 2), slice(0, 3, 2)):
            run = partial(_some, used)
            assert torch.autograd.gradcheck(run, inputs)
            assert torch.autograd.gradgradcheck(run, inputs)
    for part, layer in zip(joined(x, weights, biases), layers, strict=True):
        torch.testing.assert_close(part, layer(x))
        part.add_(1)  # of its own, not a view


def _some(used: slice, x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
    return joined(x, parameters[:3], parameters[3:] or None)[used]
