"""Step times of a model on its example inputs."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..example import State, arguments_of
from .outputs import LOSS, Outputs, used


class Steps:
    """Timed steps of a model in its own mode: forward and, with `gradients`, backward.

    Backward begins at the model's loss where it gives one by that name or as a scalar, else at all outputs,
    and takes no more memory than a step of training. The model, the example and all random numbers are as
    before after each step; what is between steps is not timed.
    """

    def __init__(
        self,
        model: nn.Module,
        example_inputs: Any,
        *,
        gradients: bool,
        outputs: Outputs | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model, self._example, self._clock = model, example_inputs, clock
        self._outputs = outputs
        self._weights = [one for one in model.parameters() if one.requires_grad] if gradients else []
        self._gpus = {one.device for one in model.parameters() if one.device.type == "cuda"}

    @property
    def passes(self) -> str:
        """Passes of a step, in words."""
        return "forward and backward" if self._weights else "forward"

    def __call__(self, count: int) -> list[float]:
        """Milliseconds of each of `count` steps."""
        state, took = State(self._model), []
        with torch.set_grad_enabled(bool(self._weights)), _no_garbage_collection():
            for _ in range(count):
                args, kwargs = arguments_of(self._example)
                try:
                    self._wait()
                    start = self._clock()
                    self._step(args, kwargs)
                    self._wait()
                    took.append((self._clock() - start) * 1e3)
                finally:
                    state.put_back()
        return took

    def _step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = _ends(self._model(*args, **kwargs), self._outputs)
        reached = [one for one in given if one.requires_grad]
        weights = [one for one in self._weights if one.requires_grad]  # forward may freeze some
        if reached and weights:
            seeds = [torch.ones_like(one) for one in reached]
            torch.autograd.grad(reached, weights, seeds, allow_unused=True)

    def _wait(self) -> None:
        for device in self._gpus:
            torch.cuda.synchronize(device)


def _ends(found: Any, outputs: Outputs | None) -> list[Tensor]:
    """Tensors of the output at which backward begins."""
    if outputs is None and isinstance(found, Mapping) and isinstance(found.get("loss"), Tensor):
        outputs = LOSS
    given = used(found, outputs)
    scalars = [one for one in given if not one.dim() and one.requires_grad]
    return scalars[:1] or given


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Context without garbage collection, which would add to the time of a random step."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
