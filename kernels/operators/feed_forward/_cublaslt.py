"""A feed-forward layer whose activation and its slope are applied by cuBLASLt before it writes a product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.nn.functional import gelu, linear, relu

from ...contract import Device, Problem
from ...matmul.cublaslt import Then, aux_of, check, multiply, refused, sums_of_rows
from ...runtime.autograd import first_order
from ._function import Weights
from ._module import Layer, _cast

FORWARD = {"relu": Then.RELU, "gelu_tanh": Then.GELU_TANH}
SLOPE = {"relu": Then.RELU_SLOPE | Then.AUX, "gelu_tanh": Then.GELU_TANH_SLOPE | Then.AUX}
MULTIPLE = 8  # elements, 16 bytes of each row


def refused_by_epilogues(problem: Problem, device: Device) -> str | None:
    """Reason why cuBLASLt's epilogues cannot do what is between the products of a problem, or None."""
    if reason := refused(problem, device):
        return reason
    if problem["activation"] not in FORWARD:
        return f"cuBLASLt has relu and GELU by tanh, not {problem['activation']}"
    if problem["dropout"] > 0 and problem["mode"] == "training":
        return "has nothing between activation and second product that could drop"
    if problem["hidden"] % MULTIPLE or problem["inner"] % MULTIPLE:
        return f"takes hidden and inner that are multiples of {MULTIPLE}, whole 16 bytes of each row"
    return None


class EpilogueFeedForward(Layer):
    """y of x [..., H], as `linear2(activation(linear1(x)))`.

    Kept for backward are what the slope needs, GELU's argument or a bit of relu's, and the activation's
    output, which with `again` is made again from GELU's argument. Raises RuntimeError for other tensors than
    float16 and bfloat16 on one NVIDIA GPU, and where training is to drop.
    """

    def __init__(self, problem: Problem, *, again: bool) -> None:
        super().__init__(problem)
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        """y [..., H] of x [..., H]; under autocast in its dtype."""
        return _outside_of_graphs(self, x)

    def _forward(self, x: Tensor) -> Tensor:
        if self.training and self.dropout:
            raise RuntimeError(
                f"dropout={self.dropout} in training: this implementation drops nothing in between. "
                "Build another one."
            )
        w1, b1, w2, b2 = self.weights
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, w1, b1, w2, b2 = (_cast(one, dtype) for one in (x, w1, b1, w2, b2))  # type: ignore[assignment]
        if not x.numel() or x.size(-1) != w1.size(1):
            act = relu if self.activation == "relu" else gelu
            return linear(act(linear(x, w1, b1)), w2, b2)  # raises, or has nothing to compute
        check(x, w1, b1)
        y: Tensor = _apply(x.reshape(-1, x.size(-1)), (w1, b1, w2, b2), self.activation, self.again)
        return y.view(*x.shape[:-1], y.size(-1))


@_disable_dynamo  # as torch.compiler.disable, but imports torch.compile at the first call, not here
def _outside_of_graphs(module: EpilogueFeedForward, x: Tensor) -> Tensor:
    return module._forward(x)


def _apply(x: Tensor, weights: Weights, activation: str, again: bool) -> Tensor:
    given = (x, *weights)
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in given):
        y: Tensor = _FeedForward.apply((activation, again), *given)  # type: ignore[no-untyped-call]
        return y
    w1, b1, w2, b2 = weights
    return _second(_first(x, w1, b1, activation, None), w2, b2)


def _first(x: Tensor, w1: Tensor, b1: Tensor | None, activation: str, aux: Tensor | None) -> Tensor:
    """a [rows, F]; what the slope needs is in `aux`."""
    then = FORWARD[activation]
    if b1 is not None:
        then |= Then.BIAS
    return multiply(x, w1.t(), then if aux is None else then | Then.AUX, bias=b1, aux=aux)


def _second(a: Tensor, w2: Tensor, b2: Tensor | None) -> Tensor:
    return multiply(a, w2.t(), Then.NOTHING if b2 is None else Then.BIAS, bias=b2)


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        how: tuple[str, bool],
        x: Tensor,
        w1: Tensor,
        b1: Tensor | None,
        w2: Tensor,
        b2: Tensor | None,
    ) -> Tensor:
        activation, again = ctx.how = how
        aux = aux_of(x.size(0), w1.size(0), x, bits=activation == "relu")
        a = _first(x, w1, b1, activation, aux)
        ctx.save_for_backward(x, w1, w2, aux, a if ctx.needs_input_grad[4] and not again else None)
        return _second(a, w2, b2)

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, w1, w2, aux, a = ctx.saved_tensors
        for_x, for_w1, for_b1, for_w2, for_b2 = ctx.needs_input_grad[1:]
        db2 = sums_of_rows(dy) if for_b2 else None
        dw2 = None
        if for_w2:
            # the activation again, before dh needs memory
            dw2 = multiply(dy.t(), gelu(aux, approximate="tanh") if a is None else a)
        dh = multiply(dy, w2, SLOPE[ctx.how[0]], aux=aux)
        # cuBLASLt has the sums of dh's rows as well, at three times the product's time
        db1 = sums_of_rows(dh) if for_b1 else None
        dx = multiply(dh, w1) if for_x else None
        dw1 = multiply(dh.t(), x) if for_w1 else None
        return None, dx, dw1, db1, dw2, db2
