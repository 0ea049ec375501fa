"""Both passes of the products of pairs, by a function that multiplies them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ...runtime.passes import Gradients, Made, Passes, Saved, TwoPassLayer


class Call(NamedTuple):
    """Arguments of a call."""

    a: Tensor  # [S, M, K]
    b: Tensor  # [S, K, N]


def layer_of(name: str, product: Callable[[Tensor, Tensor], Tensor]) -> TwoPassLayer:
    """c_s = a_s b_s [S, M, N] by a function that takes a and b of any strides, with these operators' name."""

    def memory(call: Call, _needs: Call) -> Made:
        return Made((call.a.new_empty(call.a.size(0), call.a.size(1), call.b.size(2)),))

    def forward(call: Call, _needs: Call) -> Made:
        return Made((product(call.a, call.b),))

    def backward(saved: Saved, upstream: Gradients, needs: Call) -> dict[str, Tensor | None]:
        """da_s = dc_s b_s^T, db_s = a_s^T dc_s."""
        (a, b), (dc,) = saved.call, upstream
        if dc is None:
            return {}
        return {
            "a": product(dc, b.transpose(1, 2)) if needs.a else None,
            "b": product(a.transpose(1, 2), dc) if needs.b else None,
        }

    return TwoPassLayer(name, Call, Passes(forward, memory, backward, ("a", "b"), contiguous=True))
