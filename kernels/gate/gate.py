"""Judge an implementation's outputs and every gradient against the equations in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import registry
from ..contract import GateResult, Inputs, Problem
from .dropout import SHARE, DropoutCheck
from .poison import poisoned_memory
from .runs import Runs, flatten, map_tensors, only_real, real
from .tolerance import TOLERANCES, Error, Tolerance, kind, scales


class Gate:
    """Everything that the candidates of one problem share: inputs, the float64 answer, torch's own error.

    `inputs` are on `torch_device` and must not be changed. In training mode the gradients of every
    floating-point argument and of every parameter are judged beside the outputs; in inference mode the
    outputs alone, under `torch.inference_mode`.

    Where torch's own implementation raises, is wrong, or gives something of another form, the bound is what
    the equations' own operations err at the problem's precision, and every result's detail says so. What
    drops outputs at random cannot be compared: modules run with their `dropout` set to 0, and the detail says
    that too. They then run with it set to `dropout.SHARE`, which shows whether backward drops what forward
    dropped.
    """

    def __init__(self, problem: Problem, torch_device: str, seed: int = 0) -> None:
        self.problem = problem
        self.torch_device = torch_device
        self._runs = Runs(problem, torch_device, seed)
        self.inputs: Inputs = self._runs.inputs
        self._dtype = self._runs.dtype
        self._expected, self._indices = self._reference()
        self._scales = scales(self._expected)
        torchs_own, note = self._bound()
        self._note = note + ("; with dropout set to 0" if self._runs.drops else "")
        self._allowed = {name: torchs_own[name].allowed(self._tolerance(name)) for name in self._expected}
        self._dropout = DropoutCheck(self._runs, self._expected, self._scales, self._allowed)

    def check(self, module: nn.Module) -> GateResult:
        """Load the inputs' parameters into a built module, move it to the device, run it and judge it.

        The module runs twice, on other inputs the second time, before its backward pass: a module that
        keeps its results in memory of its own is found out. Errors that it raises pass through. It is
        left on the device with the parameters loaded and no gradients.
        """
        self._runs.load(module)
        arguments = self._runs.arguments(self._dtype)
        with poisoned_memory(), self._runs.dropping(module, 0.0):
            with self._runs.grad_mode():
                outputs = flatten("output", module(*arguments))
                halves = map_tensors(lambda tensor: tensor * 0.5 if real(tensor) else tensor, arguments)
                again = flatten("output", module(*halves))
            fault = self._form(outputs, "output") or self._form(again, "output")
            if fault:
                return _failed(fault)
            outputs = only_real(outputs)
            gradients = self._runs.gradients(module, arguments, outputs)
        fault = self._form(gradients, "gradient") or self._changed(module, arguments)
        result = _failed(fault) if fault else self._judge({**outputs, **gradients})
        if not result.passed or not self._runs.drops:
            return result
        del outputs, again, gradients
        fault, note = self._dropout.check(module)
        if fault:
            return _failed(f"with dropout set to {SHARE}: {fault}")
        return replace(result, detail=result.detail + note)

    def _reference(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The float64 tensors, and those that must be equal: indices of packed sequences."""
        module = registry.reference(self.problem)
        self._runs.load(module, torch.float64)
        arguments = self._runs.arguments(torch.float64)
        with self._runs.grad_mode():
            every = flatten("output", module(*arguments))
        outputs = only_real(every)
        gradients = self._runs.gradients(module, arguments, outputs)
        expected = {name: tensor.detach() for name, tensor in {**outputs, **gradients}.items()}
        return expected, {name: tensor for name, tensor in every.items() if name not in outputs}

    def _tolerance(self, name: str) -> Tolerance:
        return TOLERANCES[self._dtype, kind(name)]

    def _bound(self) -> tuple[dict[str, Error], str]:
        """The errors that torch makes at the problem's precision, and whose they are where it matters.

        The default implementation's; where that is wrong or raises, the equations' in torch's operations.
        """
        name = registry.operator(self.problem.operator).default
        errors, fault = self._errors(registry.implementation(self.problem.operator, name).build, name)
        if not fault:
            return errors, ""
        errors, other = self._errors(registry.reference, "the reference")
        if not other:
            return errors, f"{fault}: the equations in {self.problem['dtype']} set the bound"
        return dict.fromkeys(self._expected, Error(0.0, 0.0)), fault + other

    def _errors(self, build: Callable[[Problem], nn.Module], name: str) -> tuple[dict[str, Error], str]:
        """A module's errors in the problem's dtype, and what is wrong with them, in words."""
        try:
            errors = self._errors_of(build(self.problem))
        except Exception as error:
            if self.torch_device != "cpu":
                torch.cuda.synchronize()  # raises where this process can judge nobody any more
            reason = str(error).strip().partition("\n")[0]
            return {}, f"; {name} sets no bound here ({type(error).__name__}: {reason})"
        worst = max(errors, key=lambda one: errors[one].rms / self._tolerance(one).cap)
        if errors[worst].rms <= self._tolerance(worst).cap:
            return errors, ""
        return errors, f"; {name} itself is wrong here ({worst}: error {errors[worst].rms:.2g} RMS)"

    def _errors_of(self, module: nn.Module) -> dict[str, Error]:
        """A module's errors. Raises what it raises, and ValueError for tensors of another form."""
        self._runs.load(module, self._dtype)
        arguments = self._runs.arguments(self._dtype)
        with self._runs.dropping(module, 0.0), self._runs.grad_mode():
            every = flatten("output", module(*arguments))
        outputs = only_real(every)
        gradients = self._runs.gradients(module, arguments, outputs)
        if fault := self._form(every, "output") or self._form(gradients, "gradient"):
            raise ValueError(fault)
        actual = {**outputs, **gradients}
        return {
            name: Error.of(actual[name], expected, self._scales[name])
            for name, expected in self._expected.items()
        }

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
        before = flatten("argument", self.inputs.args) | dict(self.inputs.state_dict)
        after = flatten("argument", arguments) | dict(module.state_dict())
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
