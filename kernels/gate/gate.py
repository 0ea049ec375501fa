"""Judge an implementation's outputs and every gradient, over several calls that differ in kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import registry
from ..contract import GateResult, Inputs, Problem
from ..runtime.out_of_memory import is_out_of_memory
from .answer import Answer
from .dropout import DropoutCheck
from .extreme_inputs import HardAnswer, HardRuns
from .full_length import LongerAnswer
from .poison import poisoned_memory
from .runs import Runs, draw, flatten, only_real
from .strides import StridedRuns


class Gate:
    """The gate of one problem, for all its candidates: inputs, the float64 answers, torch's own errors.

    A candidate is judged by these checks, one after another; the first that fails gives the result's detail:

    - Two calls with different arguments, the second with strides of its own, both forward passes before
      both backward passes: form, largest and RMS error, signed mean. Nothing that was given is changed.
    - A call with rows out of the ordinary: large ones, equal ones, outliers, -0 and subnormal numbers.
    - Where candidates are built for a `whole` problem of more time steps: a call with all of them.
    - Where the problem drops elements: masks, at a share of the gate's own and at the problem's.

    `inputs` are on `torch_device` and must not be changed. In training mode the gradients of every
    floating-point argument and of every parameter are judged beside the outputs; in inference mode the
    outputs alone, under `torch.inference_mode`. What drops outputs at random cannot be compared: modules run
    with their `dropout` set to 0 in all checks but the last, and the detail says that.
    """

    def __init__(
        self, problem: Problem, torch_device: str, seed: int = 0, *, whole: Problem | None = None
    ) -> None:
        self.problem = problem
        self.torch_device = torch_device
        self._runs = Runs(problem, torch_device, seed)
        self.inputs: Inputs = self._runs.inputs
        other = replace(self.inputs, args=draw(problem, torch_device, seed + 1).args)
        self._answer = Answer(self._runs)
        strided = self._strided_runs(other, seed + 1)
        self._strided = Answer(strided, "strided call: ", beside=self._answer)
        hard = HardRuns(problem, torch_device, seed + 2, other)
        self._hard = HardAnswer(hard, trusted=not self._answer.note)
        self._longer, unjudged = self._all_steps(whole, seed) if whole else (None, "")
        self._note = "; with dropout set to 0" if self._runs.drops else ""
        self._note = self._torchs_own() + self._note + unjudged
        self._dropout = DropoutCheck(self._answer)

    def check(self, module: nn.Module) -> GateResult:
        """Load the inputs' parameters into a built module, move it to the device, run it and judge it.

        Errors that it raises pass through. It is left on the device with the parameters loaded and no
        gradients.
        """
        self._runs.load(module)
        worst: GateResult | None = None
        with poisoned_memory(), self._runs.dropping(module, 0.0):
            for check in (self._two_calls, self._hard_rows, self._steps):
                result = check(module)
                if result is not None:
                    worst = result if worst is None else max(worst, result, key=_ratio)
                    if not result.passed:
                        break
        assert worst is not None
        worst = replace(worst, detail=worst.detail + self._note)
        if not worst.passed or not self._runs.drops:
            return worst
        fault, note = self._dropout.check(module)
        if fault:
            return GateResult(passed=False, worst_error_ratio=None, detail=fault)
        return replace(worst, detail=worst.detail + note)

    def _strided_runs(self, inputs: Inputs, seed: int) -> StridedRuns:
        """Runs with strides of as many arguments as torch's own takes with such: all, the first, or none."""
        operator = registry.operator(self.problem.operator)
        for first in (None, 1, 0):
            runs = StridedRuns(self.problem, self.torch_device, seed, inputs, first)
            try:
                module = runs.build(registry.implementation(operator.name, operator.default).build)
                runs.load(module)
                with runs.grad_mode():
                    module(*runs.arguments(runs.dtype))
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                continue  # which strides it does not take, or that it takes none of these calls
            break
        return runs

    def _torchs_own(self) -> str:
        """What is wrong with torch's own in some call, each in words once, the plain call's first."""
        answers = (self._answer, self._strided, self._hard, self._longer)
        notes = [answer.note for answer in answers if answer is not None]
        return notes[0] or "".join(dict.fromkeys(notes))

    def _two_calls(self, module: nn.Module) -> GateResult:
        """Both are judged after both have run: a module that keeps results of its own is found out."""
        answers = (self._answer, self._strided)
        given = [answer.runs.arguments(self._runs.dtype) for answer in answers]
        with self._runs.grad_mode():
            found = [flatten("output", module(*arguments)) for arguments in given]
        results: list[GateResult] = []
        for answer, outputs, arguments in zip(answers, found, given, strict=True):
            if fault := answer.form(outputs, "output"):
                return answer.failed(fault)
            results.append(answer.judge(outputs))
            if not results[-1].passed:
                fault = _changed(answer.runs, module, arguments)
                return answer.failed(fault) if fault else results[-1]
        both = [
            answer.runs.gradients(module, arguments, only_real(found.pop(0)))
            for answer, arguments in zip(answers, given, strict=True)
        ]
        for answer, arguments, gradients in zip(answers, given, both, strict=True):
            fault = answer.form(gradients, "gradient") or _changed(answer.runs, module, arguments)
            if fault:
                return answer.failed(fault)
            results.append(answer.judge(gradients))
        return max(results, key=_ratio)

    def _hard_rows(self, module: nn.Module) -> GateResult:
        return _one_call(module, self._hard)

    def _steps(self, module: nn.Module) -> GateResult | None:
        return None if self._longer is None else _one_call(module, self._longer)

    def _all_steps(self, whole: Problem, seed: int) -> tuple[LongerAnswer | None, str]:
        """The answer for all steps, or words for why there is none."""
        args = draw(whole, self.torch_device, seed + 3).args
        try:
            runs = Runs(whole, self.torch_device, seed + 3, replace(self.inputs, args=args))
            return LongerAnswer(runs), ""
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return None, "; later steps not judged, for which torch's own runs out of memory"


def _one_call(module: nn.Module, answer: Answer) -> GateResult:
    arguments = answer.runs.arguments(answer.runs.dtype)
    with answer.runs.grad_mode():
        every = flatten("output", module(*arguments))
    if fault := answer.form(every, "output"):
        return answer.failed(fault)
    outputs = only_real(every)
    gradients = answer.runs.gradients(module, arguments, outputs)
    fault = answer.form(gradients, "gradient") or _changed(answer.runs, module, arguments)
    return answer.failed(fault) if fault else answer.judge({**outputs, **gradients})


def _changed(runs: Runs, module: nn.Module, arguments: tuple[Any, ...]) -> str:
    """Which argument or parameter a run changed, in words; empty when none."""
    before = flatten("argument", runs.inputs.args) | dict(runs.inputs.state_dict)
    after = flatten("argument", arguments) | dict(module.state_dict())
    differ = [_differ(tensor, after[name]).to(runs.torch_device) for name, tensor in before.items()]
    for name, changed in zip(before, torch.stack(differ).tolist(), strict=True):  # the host waits once
        if changed:
            return f"{name} was changed in place"
    return ""


def _differ(one: Tensor, two: Tensor) -> Tensor:
    """Whether two tensors differ in form or in an element, as a tensor [] that no host has waited for."""
    return (one != two).any() if one.shape == two.shape else torch.tensor(True)


def _ratio(result: GateResult) -> float:
    """How bad: what has no number is worse than any."""
    return float("inf") if result.worst_error_ratio is None else result.worst_error_ratio
