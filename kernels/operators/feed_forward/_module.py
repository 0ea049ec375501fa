"""The module of a feed-forward layer: parameters as in nn.TransformerEncoderLayer, and dropout."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...contract import Problem
from ...runtime.dropout import draw_seed
from ._activation import Middle, threshold_of
from ._function import Weights, feed_forward


class Layer(nn.Module):
    """Parameters `linear1` and `linear2`; `dropout` is the share that training drops after the activation."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        dtype = getattr(torch, problem["dtype"])
        hidden, inner, bias = problem["hidden"], problem["inner"], problem["bias"]
        self.linear1 = nn.Linear(hidden, inner, bias=bias, dtype=dtype)
        self.linear2 = nn.Linear(inner, hidden, bias=bias, dtype=dtype)
        self.activation: str = problem["activation"]
        self.dropout: float = problem["dropout"]
        self.train(problem["mode"] == "training")

    @property
    def weights(self) -> Weights:
        """W1 [F, H], b1 [F], W2 [H, F], b2 [H]; without biases None in their place."""
        return self.linear1.weight, self.linear1.bias, self.linear2.weight, self.linear2.bias

    def extra_repr(self) -> str:
        """Activation and dropout, which are no parameters, as text for print."""
        return f"activation={self.activation}, dropout={self.dropout}"


class FeedForward(Layer):
    """y of x [..., H], as `linear2(dropout(activation(linear1(x))))`, with what `keep` says for backward.

    Dropout is replayed from a seed that is drawn on the device, and its share is rounded up to whole
    65536ths. Raises torch's errors for shapes and dtypes that do not fit, and for a share outside of [0, 1].
    """

    def __init__(self, problem: Problem, keep: str) -> None:
        super().__init__(problem)
        self.keep = keep

    def forward(self, x: Tensor) -> Tensor:
        """y [..., H] of x [..., H]; under autocast in its dtype."""
        threshold = threshold_of(self.dropout) if self.training else 0
        seed = draw_seed(x.device) if threshold else None
        middle = Middle(self.activation, self.keep, threshold, seed)
        weights = self.weights
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, *cast = (_cast(one, dtype) for one in (x, *weights))  # type: ignore[assignment]
            weights = tuple(cast)  # type: ignore[assignment]
        y = feed_forward(x.reshape(-1, x.size(-1)), weights, middle)
        return y.view(*x.shape[:-1], y.size(-1))


def _cast(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return tensor if tensor is None or tensor.dtype == torch.float64 else tensor.to(dtype)
