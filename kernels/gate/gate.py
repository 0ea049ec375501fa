"""Judge an implementation's outputs and every gradient against the equations in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .. import registry
from ..contract import GateResult, Inputs, Problem
from .poison import poisoned_memory
from .tolerance import TOLERANCES, Error, Tolerance, kind, scales


class Gate:
    """Everything that the candidates of one problem share: inputs, the float64 answer, torch's own error.

    `inputs` are on `torch_device` and must not be changed. In training mode the gradients of every
    floating-point argument and of every parameter are judged beside the outputs; in inference mode the
    outputs alone, under `torch.inference_mode`.

    Where torch's own implementation raises, or gives something of another form, the floors of the
    tolerance table are all that is allowed, and every result's detail says so. What drops outputs at
    random cannot be compared: modules run with their `dropout` set to 0, and the detail says that too.
    """

    def __init__(self, problem: Problem, torch_device: str, seed: int = 0) -> None:
        self.problem = problem
        self.torch_device = torch_device
        self.inputs: Inputs = registry.operator(problem.operator).make_inputs(problem, torch_device, seed)
        self._training: bool = problem["mode"] == "training"
        self._dtype: torch.dtype = getattr(torch, problem["dtype"])
        self._seed = seed
        self._drops = bool(problem.as_dict.get("dropout")) and self._training
        self._expected, self._indices = self._reference()
        self._scales = scales(self._expected)
        torchs_own, note = self._errors_of_default()
        self._note = note + ("; with dropout set to 0" if self._drops else "")
        self._allowed = {name: torchs_own[name].allowed(self._tolerance(name)) for name in self._expected}

    def check(self, module: nn.Module) -> GateResult:
        """Load the inputs' parameters into a built module, move it to the device, run it and judge it.

        The module runs twice, on other inputs the second time, before its backward pass: a module that
        keeps its results in memory of its own is found out. Errors that it raises pass through. It is
        left on the device with the parameters loaded and no gradients.
        """
        self._load(module)
        arguments = self._arguments(self._dtype)
        with poisoned_memory(), self._nothing_dropped(module):
            with self._grad_mode():
                outputs = _flatten("output", module(*arguments))
                again = _flatten("output", module(*_map(lambda t: t * 0.5 if _real(t) else t, arguments)))
            fault = self._form(outputs, "output") or self._form(again, "output")
            if fault:
                return _failed(fault)
            outputs = _only_real(outputs)
            gradients = self._gradients(module, arguments, outputs)
        fault = self._form(gradients, "gradient") or self._changed(module, arguments)
        return _failed(fault) if fault else self._judge({**outputs, **gradients})

    def _reference(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The float64 tensors, and those that must be equal: indices of packed sequences."""
        module = registry.reference(self.problem)
        self._load(module, torch.float64)
        arguments = self._arguments(torch.float64)
        with self._grad_mode():
            every = _flatten("output", module(*arguments))
        outputs = _only_real(every)
        gradients = self._gradients(module, arguments, outputs)
        expected = {name: tensor.detach() for name, tensor in {**outputs, **gradients}.items()}
        return expected, {name: tensor for name, tensor in every.items() if name not in outputs}

    def _tolerance(self, name: str) -> Tolerance:
        return TOLERANCES[self._dtype, kind(name)]

    def _errors_of_default(self) -> tuple[dict[str, Error], str]:
        """The errors of torch's own implementation, and what is wrong with it, in words."""
        name = registry.operator(self.problem.operator).default
        try:
            errors = self._errors(registry.implementation(self.problem.operator, name).build(self.problem))
        except Exception as error:
            if self.torch_device != "cpu":
                torch.cuda.synchronize()  # raises where this process can judge nobody any more
            reason = str(error).strip().partition("\n")[0]
            none = dict.fromkeys(self._expected, Error(0.0, 0.0))
            return none, f"; {name} sets no bound here ({type(error).__name__}: {reason})"
        worst = max(errors, key=lambda one: errors[one].rms / self._tolerance(one).cap)
        if errors[worst].rms <= self._tolerance(worst).cap:
            return errors, ""
        return errors, f"; {name} itself is wrong here ({worst}: error {errors[worst].rms:.2g} RMS)"

    def _errors(self, module: nn.Module) -> dict[str, Error]:
        """A module's errors. Raises what it raises, and ValueError for tensors of another form."""
        self._load(module)
        arguments = self._arguments(self._dtype)
        with self._nothing_dropped(module), self._grad_mode():
            every = _flatten("output", module(*arguments))
        outputs = _only_real(every)
        gradients = self._gradients(module, arguments, outputs)
        if fault := self._form(every, "output") or self._form(gradients, "gradient"):
            raise ValueError(fault)
        actual = {**outputs, **gradients}
        return {
            name: Error.of(actual[name], expected, self._scales[name])
            for name, expected in self._expected.items()
        }

    def _load(self, module: nn.Module, dtype: torch.dtype | None = None) -> None:
        module.to(self.torch_device, dtype)
        module.load_state_dict(self.inputs.state_dict)
        module.train(self._training)

    @contextmanager
    def _nothing_dropped(self, module: nn.Module) -> Iterator[None]:
        parts: list[Any] = [part for part in module.modules() if self._drops and hasattr(part, "dropout")]
        changed = {part: part.dropout for part in parts if isinstance(part.dropout, float)}
        try:
            for part in changed:
                part.dropout = 0.0
            yield
        finally:
            for part, share in changed.items():
                part.dropout = share

    def _grad_mode(self) -> Any:
        return torch.enable_grad() if self._training else torch.inference_mode()

    def _arguments(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Copies of the inputs that a run may not change, as leaves of its graph."""

        def fresh(tensor: Tensor) -> Tensor:
            return (
                tensor.to(dtype, copy=True).requires_grad_(self._training)
                if _real(tensor)
                else tensor.clone()
            )

        copies: tuple[Any, ...] = _map(fresh, self.inputs.args)
        return copies

    def _gradients(
        self, module: nn.Module, arguments: tuple[Any, ...], outputs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The gradients of random weightings of all outputs; without those that autograd does not reach."""
        if not self._training:
            return {}
        leaves = {
            name: tensor
            for name, tensor in _flatten("gradient of argument", arguments).items()
            if tensor.requires_grad
        } | {f"gradient of parameter {name}": parameter for name, parameter in module.named_parameters()}
        generator = torch.Generator(self.torch_device).manual_seed(self._seed + 1)
        reached, weights = [], []
        for output in outputs.values():
            weight = torch.randn(output.shape, generator=generator, device=self.torch_device)
            if output.requires_grad:
                reached.append(output)
                # rounded to the problem's dtype first, so that the reference gets the same weights
                weights.append(weight.to(self._dtype).to(output.dtype))
        if not reached:
            return {}
        found = torch.autograd.grad(reached, list(leaves.values()), weights, allow_unused=True)
        return {name: tensor for name, tensor in zip(leaves, found, strict=True) if tensor is not None}

    def _form(self, actual: Mapping[str, Tensor], of_kind: str) -> str:
        """What is wrong with names, shapes, dtypes or device, in words; empty when nothing is."""
        both = {**self._expected, **self._indices}
        expected = {name: tensor for name, tensor in both.items() if kind(name) == of_kind}
        for name in expected.keys() - actual.keys():
            return f"{name} is missing"
        for name, tensor in actual.items():
            if name in self._indices:
                if not torch.equal(tensor, expected[name]):
                    return f"{name} differs"
                continue
            if name not in expected:
                return f"{name} is not expected"
            if tensor.shape != expected[name].shape:
                return f"{name} has shape {list(tensor.shape)}, expected {list(expected[name].shape)}"
            if tensor.dtype != self._dtype:
                return f"{name} has dtype {tensor.dtype}, expected {self._dtype}"
            if tensor.device != expected[name].device:
                return f"{name} is on {tensor.device}, expected {expected[name].device}"
        return ""

    def _changed(self, module: nn.Module, arguments: tuple[Any, ...]) -> str:
        """Which argument or parameter the run changed, in words; empty when none."""
        before = _flatten("argument", self.inputs.args) | dict(self.inputs.state_dict)
        after = _flatten("argument", arguments) | dict(module.state_dict())
        for name, tensor in before.items():
            if not torch.equal(tensor, after[name]):
                return f"{name} was changed in place"
        return ""

    def _judge(self, actual: Mapping[str, Tensor]) -> GateResult:
        worst, detail = 0.0, ""
        for name, expected in self._expected.items():
            tensor = actual[name].detach()
            if not bool(tensor.isfinite().all()):
                count = int((~tensor.isfinite()).sum())
                return _failed(
                    f"{name} has {count} of {tensor.numel()} elements that are not finite{self._note}"
                )
            error, allowed = Error.of(tensor, expected, self._scales[name]), self._allowed[name]
            ratio = error.ratio(allowed)
            if ratio >= worst:
                worst = ratio
                detail = (
                    f"{name}: error {error.rms:.2g} RMS and {error.peak:.2g} at most, "
                    f"allowed {allowed.rms:.2g} and {allowed.peak:.2g}, of the float64 tensor's RMS"
                )
        return GateResult(passed=worst <= 1, worst_error_ratio=worst, detail=detail + self._note)


def _failed(fault: str) -> GateResult:
    return GateResult(passed=False, worst_error_ratio=None, detail=fault)


def _real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _map(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same nesting of tuples with each tensor changed; a PackedSequence stays one."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        items = [_map(change, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def _only_real(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if _real(tensor)}


def _flatten(name: str, value: Any) -> dict[str, Tensor]:
    """Every tensor of nested tuples by its place: `output[1][0]`."""
    if isinstance(value, Tensor):
        return {name: value}
    if isinstance(value, (tuple, list)):
        return {
            key: tensor
            for index, item in enumerate(value)
            for key, tensor in _flatten(f"{name}[{index}]", item).items()
        }
    return {}
