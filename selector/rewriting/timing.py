"""How long a pass of the example takes, before a model is optimized and after."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from ..layers import arguments_of, undisturbed
from ..units import format_ms
from .outputs import Outputs, used

WARM_UP, RUNS = 2, 5
SLOWER = 1.03  # as much more than before is said to be slower


class Timed:
    """A model on its example as it is now: forward, with `gradients` backward as well, in its own mode.
    Backward begins at the `outputs` named, or at all.
    """

    def __init__(
        self, model: nn.Module, example_inputs: Any, *, gradients: bool, outputs: Outputs | None = None
    ) -> None:
        self._model, self._gradients, self._outputs = model, gradients, outputs
        self._args, self._kwargs = arguments_of(example_inputs)
        self.before_ms = self._least_ms()

    def compared(self) -> str:
        """What the same takes now, in words."""
        passes = "forward and backward" if self._gradients else "forward"
        after_ms = self._least_ms()
        words = f"{passes}: {format_ms(self.before_ms)} before, {format_ms(after_ms)} after."
        slower = " Slower: selector.restore(model) undoes it." if after_ms > SLOWER * self.before_ms else ""
        return f"Timed on the example, {words}{slower}"

    def _least_ms(self) -> float:
        """Of some passes. The model's gradients, buffers and random numbers stay as they are."""
        took = []
        for _ in range(WARM_UP + RUNS):
            with undisturbed(self._model), torch.set_grad_enabled(self._gradients):
                _wait(self._model)
                start = time.perf_counter()
                self._pass()
                _wait(self._model)
                took.append((time.perf_counter() - start) * 1e3)
        return min(took[WARM_UP:])

    def _pass(self) -> None:
        weights = [one for one in self._model.parameters() if one.requires_grad]
        given = used(self._model(*self._args, **self._kwargs), self._outputs)
        reached = [one for one in given if one.requires_grad]
        if reached and weights:
            seeds = [torch.ones_like(one) for one in reached]
            torch.autograd.grad(reached, weights, seeds, allow_unused=True)


def _wait(model: nn.Module) -> None:
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
