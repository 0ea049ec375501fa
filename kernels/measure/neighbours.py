"""A layer compiled with neighbours, as it stands in a model under torch.compile: the regime `compiled`.

    y = layer(prelu(x + b, a), ...)   y + s * x where y has the shape of x

x is the layer's first argument, b a bias of x's last dimension, prelu the activation before, and s * x the
residual behind. All of it is one graph of Inductor, forwards and backwards, with fixed sizes: what Inductor
can look into it fuses with the layer, and what is an operator to it stays whole. b = 0, a = 1 and s = 0 are
tensors, of which the compiler knows no value: it computes all of this, b's gradient too, and yet what comes
out is exactly the layer's. So the gate judges it as it does the layer, and no residual hides an error.

Times are of the whole graph: of all candidates alike, the neighbours' share and what a call of a compiled
function costs the host are in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from ..contract import Device, Implementation, MeasurementFailed, Problem
from ..contract.implementation import REPLAYS
from ..runtime.torch_compile import refused_by_compiler, unavailable

MOST_VARIANTS = 64  # of a graph: calls with other strides, shares of dropout and modes make one each


class Amid(nn.Module):
    """A layer compiled with neighbours, in the layer's place: with its parameters, by the layer's names."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self._around: dict[Any, tuple[Tensor, Tensor, Tensor]] = {}
        own = FunctionType(_amid.__code__.replace(), _amid.__globals__, _amid.__name__)
        self._call = torch.compile(own, dynamic=False, fullgraph=True)

    def forward(self, x: Tensor, *rest: Any) -> Any:
        """The layer's outputs, of its arguments."""
        wanted = self.training and torch.is_grad_enabled()
        key = x.shape[-1], x.dtype, x.device, wanted, torch.is_inference_mode_enabled()
        if key not in self._around:
            bias = x.new_zeros(x.shape[-1]).requires_grad_(wanted)
            self._around[key] = bias, x.new_ones(1), x.new_zeros(())
        return self._call(self.layer, self._around[key], x, *rest)

    @property
    def static_bytes(self) -> int:
        """Bytes that the layer keeps for itself between calls."""
        return int(getattr(self.layer, "static_bytes", 0))

    def named_parameters(self, *given: Any, **named: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """The layer's."""
        return self.layer.named_parameters(*given, **named)

    def state_dict(self, *given: Any, **named: Any) -> Any:
        """The layer's."""
        return self.layer.state_dict(*given, **named)

    def load_state_dict(self, state_dict: Mapping[str, Any], *given: Any, **named: Any) -> Any:
        """Load the layer's."""
        return self.layer.load_state_dict(state_dict, *given, **named)


def amid_neighbours(layer: nn.Module) -> Amid:
    """A layer compiled with neighbours, in a process that compiles as many variants as the gate calls for."""
    torch._dynamo.config.recompile_limit = MOST_VARIANTS  # not at each call, which is timed
    return Amid(layer)


def _amid(layer: nn.Module, around: tuple[Tensor, Tensor, Tensor], x: Tensor, *rest: Any) -> Any:
    bias, slope, share = around
    outputs = layer(nn.functional.prelu(x + bias, slope), *rest)
    several = isinstance(outputs, tuple)
    y = outputs[0] if several else outputs
    if y.shape == x.shape:
        y = y + share * x
    return (y, *outputs[1:]) if several else y


def refusal(implementation: Implementation, problem: Problem) -> str | None:
    """Reason why an implementation is not compiled with neighbours, or None."""
    if implementation.replays:
        return REPLAYS
    if problem.as_dict.get("packed"):
        return "a packed sequence has no neighbours that Inductor fuses"
    return None


def require_compiler(device: Device) -> None:
    """Raise MeasurementFailed where Inductor cannot compile for a device."""
    reason = unavailable(device.kind)
    if reason is None and device.kind == "cuda":
        reason = refused_by_compiler(device)
    if reason is not None:
        raise MeasurementFailed(f"regime=compiled on {device.name}: {reason}. Measure launched layers there.")
