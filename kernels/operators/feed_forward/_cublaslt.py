"""A feed-forward layer whose activation and its slope are applied by cuBLASLt before it writes a product."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, relu

from ...contract import Device, Problem
from ...matmul.cublaslt import Then, aux_of, check, multiply, refused, sums_of_rows
from ...runtime.passes import Gradients, Made, Passes, Saved, TwoPassLayer
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
        y = LAYER(Call(x.reshape(-1, x.size(-1)), w1, b1, w2, b2, self.activation, self.again))[0]
        return y.view(*x.shape[:-1], y.size(-1))


class Call(NamedTuple):
    """Arguments of a call."""

    x: Tensor  # [rows, H]
    w1: Tensor  # [F, H]
    b1: Tensor | None  # [F]
    w2: Tensor  # [H, F]
    b2: Tensor | None  # [H]
    activation: str
    again: bool  # whether backward makes the activation's output again


def _first(x: Tensor, w1: Tensor, b1: Tensor | None, activation: str, aux: Tensor | None) -> Tensor:
    """a [rows, F]; what the slope needs is in `aux`."""
    then = FORWARD[activation]
    if b1 is not None:
        then |= Then.BIAS
    return multiply(x, w1.t(), then if aux is None else then | Then.AUX, bias=b1, aux=aux)


def _second(a: Tensor, w2: Tensor, b2: Tensor | None) -> Tensor:
    return multiply(a, w2.t(), Then.NOTHING if b2 is None else Then.BIAS, bias=b2)


def _aux(call: Call) -> Tensor:
    return aux_of(call.x.size(0), call.w1.size(0), call.x, bits=call.activation == "relu")


def _memory(call: Call, needs: Call) -> Made:
    rows, inner = call.x.size(0), call.w1.size(0)
    y = call.x.new_empty(rows, call.w2.size(0))
    if not any(needs[:5]):
        return Made((y,))
    return Made((y,), (_aux(call), call.x.new_empty(rows, inner) if needs.w2 and not call.again else None))


def _forward(call: Call, needs: Call) -> Made:
    aux = _aux(call) if any(needs[:5]) else None
    a = _first(call.x, call.w1, call.b1, call.activation, aux)
    return Made((_second(a, call.w2, call.b2),), (aux, a if needs.w2 and not call.again else None))


def _backward(saved: Saved, upstream: Gradients, needs: Call) -> dict[str, Tensor | None]:
    call, (aux, a), (dy,) = saved.call, saved.kept, upstream
    if dy is None:
        return {}
    db2 = sums_of_rows(dy) if needs.b2 else None
    dw2 = None
    if needs.w2:
        # the activation again, before dh needs memory
        dw2 = multiply(dy.t(), gelu(aux, approximate="tanh") if a is None else a)
    dh = multiply(dy, call.w2, SLOPE[call.activation], aux=aux)
    # cuBLASLt has the sums of dh's rows as well, at three times the product's time
    db1 = sums_of_rows(dh) if needs.b1 else None
    dx = multiply(dh, call.w1) if needs.x else None
    dw1 = multiply(dh.t(), call.x) if needs.w1 else None
    return {"x": dx, "w1": dw1, "b1": db1, "w2": dw2, "b2": db2}


LAYER = TwoPassLayer("feed_forward_cublaslt", Call, Passes(_forward, _memory, _backward, ("x", "w1", "w2")))
