"""Runs of a module that is judged: its parameters, its arguments, the weights of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import registry
from ..contract import Inputs, Problem
from ..runtime.building import without_draws


class Results(NamedTuple):
    """One run's outputs and gradients by name."""

    seed: int
    outputs: dict[str, Tensor]
    gradients: dict[str, Tensor]


class Runs:
    """Shared state of all runs of one call; `inputs` are on `torch_device` and must not be changed.

    They are drawn where none are given.
    """

    def __init__(self, problem: Problem, torch_device: str, seed: int, inputs: Inputs | None = None) -> None:
        self.problem = problem
        self.torch_device = torch_device
        self.inputs = draw(problem, torch_device, seed) if inputs is None else inputs
        self.training: bool = problem["mode"] == "training"
        self.dtype: torch.dtype = getattr(torch, problem["dtype"])
        self.drops = bool(problem.as_dict.get("dropout")) and self.training
        self._seed = seed

    def build(self, build: Callable[[Problem], nn.Module]) -> nn.Module:
        """The problem's module of a `build`, on the device, without drawing what `load` overwrites.

        One thread of a processor took a second to draw 138 million parameters, those of a loss over 134,910
        classes, and as long to make them wider. Each call's answer builds the equations and torch's own.
        """
        with without_draws(), torch.device(self.torch_device):
            return build(self.problem)

    def load(self, module: nn.Module, dtype: torch.dtype | None = None) -> None:
        """Move a module to the device and give it the inputs' parameters, in its own dtype or another."""
        module.to(self.torch_device, dtype)
        module.load_state_dict(self.inputs.state_dict)
        module.train(self.training)

    def grad_mode(self) -> Any:
        """Inference mode unless the problem is to train."""
        return torch.enable_grad() if self.training else torch.inference_mode()

    @contextmanager
    def dropping(self, module: nn.Module, share: float) -> Iterator[None]:
        """Let the parts of a module drop this share; nothing changes where the problem does not drop."""
        parts: list[Any] = [part for part in module.modules() if self.drops and hasattr(part, "dropout")]
        changed = {part: part.dropout for part in parts if isinstance(part.dropout, float)}
        try:
            for part in changed:
                part.dropout = share
            yield
        finally:
            for part, own in changed.items():
                part.dropout = own

    def arguments(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Copies of the inputs that a run may not change, as leaves of its graph."""

        places = count()

        def fresh(tensor: Tensor) -> Tensor:
            copy = tensor.to(dtype, copy=True) if real(tensor) else tensor.clone()
            copy = self.laid_out(copy, next(places))
            return copy.requires_grad_(self.training) if real(tensor) else copy

        copies: tuple[Any, ...] = map_tensors(fresh, self.inputs.args)
        return copies

    def laid_out(self, argument: Tensor, _place: int) -> Tensor:
        """The tensor of an argument as a module gets it."""
        return argument

    def upstream(self, weight: Tensor, _place: int) -> Tensor:
        """The gradient of an output as autograd gets it."""
        return weight

    def weights(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A random weight for each element of the outputs, the same for every module."""
        generator = torch.Generator(self.torch_device).manual_seed(self._seed + 1)
        found = {}
        for place, (name, output) in enumerate(outputs.items()):
            weight = torch.randn(output.shape, generator=generator, device=self.torch_device)
            # rounded to the problem's dtype first, so that the reference gets the same weights
            found[name] = self.upstream(weight.to(self.dtype).to(output.dtype), place)
        return found

    def leaves(self, module: nn.Module, arguments: tuple[Any, ...]) -> dict[str, Tensor]:
        """Tensors that gradients are taken of, by name: floating-point arguments and parameters."""
        return {
            name: tensor
            for name, tensor in flatten("gradient of argument", arguments).items()
            if tensor.requires_grad
        } | {f"gradient of parameter {name}": parameter for name, parameter in module.named_parameters()}

    def gradients(
        self, module: nn.Module, arguments: tuple[Any, ...], outputs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The gradients of the weighted outputs; without those that autograd does not reach."""
        if not self.training:
            return {}
        leaves, weights = self.leaves(module, arguments), self.weights(outputs)
        reached = [name for name, output in outputs.items() if output.requires_grad]
        if not reached:
            return {}
        found = torch.autograd.grad(
            [outputs[name] for name in reached],
            list(leaves.values()),
            [weights[name] for name in reached],
            allow_unused=True,
        )
        return {name: tensor for name, tensor in zip(leaves, found, strict=True) if tensor is not None}

    def outputs(self, module: nn.Module, arguments: tuple[Any, ...], seed: int) -> dict[str, Tensor]:
        """Floating-point outputs of a run that begins with torch.manual_seed."""
        torch.manual_seed(seed)
        return only_real(flatten("output", module(*arguments)))

    def seeded(self, module: nn.Module, seed: int) -> Results:
        """Outputs and gradients of a run that begins with torch.manual_seed."""
        arguments = self.arguments(self.dtype)
        outputs = self.outputs(module, arguments, seed)
        gradients = self.gradients(module, arguments, outputs)
        return Results(seed, {name: output.detach() for name, output in outputs.items()}, gradients)


def draw(problem: Problem, torch_device: str, seed: int) -> Inputs:
    """The operator's random arguments and parameters for a problem."""
    return registry.operator(problem.operator).make_inputs(problem, torch_device, seed)


def real(tensor: Tensor) -> bool:
    """Whether a tensor has gradients at all."""
    return tensor.is_floating_point() or tensor.is_complex()


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same nesting of tuples with each tensor changed; a PackedSequence stays one."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        items = [map_tensors(change, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def only_real(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that can have gradients: floating-point and complex ones."""
    return {name: tensor for name, tensor in tensors.items() if real(tensor)}


def flatten(name: str, value: Any) -> dict[str, Tensor]:
    """Every tensor of nested tuples by its place: `output[1][0]`."""
    if isinstance(value, Tensor):
        return {name: value}
    if isinstance(value, (tuple, list)):
        return {
            key: tensor
            for index, item in enumerate(value)
            for key, tensor in flatten(f"{name}[{index}]", item).items()
        }
    return {}
