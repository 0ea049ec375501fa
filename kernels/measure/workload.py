"""Inputs that all candidates of one problem are run on, and one run of a candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from ..contract import Inputs, Problem

Mark = Callable[[], None]
Run = Callable[[int, Mark], None]  # run(index of the input set, what to call after forward)

MAX_SETS = 8
MAX_SETS_BYTES = 2**28


class Workload:
    """Copies of the inputs to rotate among, and the gradients that flow back from the outputs.

    In training mode every floating-point argument is a leaf that needs a gradient, as the input of a
    layer inside a network does. Rotation is for CPUs; a GPU's cache is flushed between samples instead.
    """

    def __init__(self, problem: Problem, inputs: Inputs, *, cache_bytes: int = 0) -> None:
        self.training: bool = problem["mode"] == "training"
        size = sum(tensor.nbytes for tensor in tensors(inputs.args))
        wanted = max(2, 1 + cache_bytes // max(size, 1))
        count = min(wanted, MAX_SETS, max(1, MAX_SETS_BYTES // max(size, 1)))
        self.sets = [self._copy(inputs.args) for _ in range(count)]
        self._output_gradients: list[Tensor] = []

    def grad_mode(self) -> AbstractContextManager[Any]:
        """The mode that runs must be in; entered once around many runs."""
        return torch.enable_grad() if self.training else torch.inference_mode()

    def forward(self, module: nn.Module) -> Run:
        """A forward pass, and mark while its outputs are alive."""

        def run(index: int, mark: Mark) -> None:
            outputs = module(*self.sets[index % len(self.sets)])
            mark()
            del outputs

        return run

    def whole(self, module: nn.Module) -> Run:
        """Forward, mark, and in training mode backward to all arguments and parameters."""
        if not self.training:
            return self.forward(module)
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        leaves = [[*filter(_needs_gradient, tensors(args)), *parameters] for args in self.sets]
        gradients = self._gradients(module)

        def run(index: int, mark: Mark) -> None:
            index %= len(self.sets)
            outputs = [*filter(_needs_gradient, tensors(module(*self.sets[index])))]
            mark()
            # the gradients are returned, not added to .grad, as after zero_grad(set_to_none=True)
            torch.autograd.grad(outputs, leaves[index], gradients)

        return run

    def forgotten(self, module: nn.Module) -> Run:
        """A forward pass on copies of the arguments, of which mark finds what the module keeps alone."""

        def run(index: int, mark: Mark) -> None:
            args = _map(Tensor.clone, self.sets[index % len(self.sets)])
            outputs = module(*args)
            del args
            mark()
            del outputs

        return run

    def _gradients(self, module: nn.Module) -> list[Tensor]:
        """Random, drawn once: the gate has made sure that all candidates' outputs have the same shapes."""
        if not self._output_gradients:
            outputs = filter(_needs_gradient, tensors(module(*self.sets[0])))
            self._output_gradients = [torch.randn_like(output) for output in outputs]
        return self._output_gradients

    def _copy(self, value: Any) -> Any:
        return _map(self._leaf, value)

    def _leaf(self, tensor: Tensor) -> Tensor:
        return tensor.detach().clone().requires_grad_(self.training and tensor.is_floating_point())


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples and lists, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)


def _map(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same nesting with each tensor changed; a named tuple, such as a PackedSequence, stays one."""
    if isinstance(value, Tensor):
        return change(value)
    if not isinstance(value, (tuple, list)):
        return value
    items = [_map(change, item) for item in value]
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def _needs_gradient(tensor: Tensor) -> bool:
    return tensor.requires_grad
