"""Reference tensors of one call in float64, and errors of torch's own module: the measure of candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import registry
from ..contract import GateResult, Problem
from ..contract.errors import first_words
from ..runtime.out_of_memory import is_out_of_memory
from .runs import Runs, flatten, only_real
from .tolerance import (
    MANY,
    SLICES,
    SMALL,
    STANDARD_ERRORS,
    TOLERANCES,
    Bias,
    Error,
    Tolerance,
    kind,
    scales,
    signed,
)

NO_ERROR = Error(0.0, 0.0)


class Own(NamedTuple):
    """Error and bias of torch's own module in one tensor; where it is not finite, no candidate has to be."""

    error: Error = NO_ERROR
    bias: Bias = Bias(0.0, 0.0)
    not_finite: Tensor | None = None


class Answer:
    """The float64 outputs and gradients of a call, and for each tensor what a candidate may err.

    In training mode there are gradients of every floating-point argument and every parameter; in inference
    mode outputs alone. `called` says in details which call it is, `of` what errors are relative to; without
    `signed` no signed mean is judged. The tensors are kept in float32 unless the problem is of float64: what
    that rounds is far below any floor.

    What a candidate may do is the larger of what the bounds of this call allow and those of the answer
    `beside`: torch may take a more exact way for one call's strides than it does for the other's. Errors of
    few elements, of which torch's own is chance, may also be those of the equations in torch's operations at
    the problem's precision, and signed means, up to what rounding does.

    Where torch's own implementation raises, is wrong, or gives something of another form, the bound is what
    the equations' own operations err at the problem's precision, and `note` says so.
    """

    def __init__(
        self,
        runs: Runs,
        called: str = "",
        *,
        of: str = "the float64 tensor's RMS",
        signed: bool = True,
        beside: Answer | None = None,
    ) -> None:
        self.runs = runs
        self._called, self._of, self._signed = called, of, signed
        self._rows = _rows(runs.inputs.args)
        self._dtype = runs.dtype
        self._kept = torch.float64 if runs.dtype == torch.float64 else torch.float32
        self.expected, self._indices = self._reference()
        self.scales: Mapping[str, Any] = self._scales()
        self._own, self.note = self._bound()
        self.allowed = {name: self._own[name].error.allowed(self._tolerance(name)) for name in self.expected}
        if beside is not None:
            self.allowed = {name: one.or_more(beside.allowed[name]) for name, one in self.allowed.items()}

    def results(
        self, module: nn.Module, arguments: tuple[Any, ...]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Every tensor that a loaded module returns, and its gradients."""
        with self.runs.dropping(module, 0.0), self.runs.grad_mode():
            every = flatten("output", module(*arguments))
        return every, self.runs.gradients(module, arguments, only_real(every))

    def form(self, actual: Mapping[str, Tensor], of_kind: str) -> str:
        """The first fault of names, shapes, dtypes or devices, in words; empty when there is none."""
        both = {**self.expected, **self._indices}
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

    def judge(self, actual: Mapping[str, Tensor]) -> GateResult:
        """Errors and signed means of a candidate's tensors, some or all, which are of the right form."""
        worst, detail = 0.0, ""
        for name, count, error, bias in self._taken(actual):
            if count:
                elements = self.expected[name].numel()
                return self.failed(f"{name} has {count} of {elements} elements that are not finite")
            for ratio, words in self._faults(name, error, bias):
                if ratio >= worst:
                    worst, detail = ratio, f"{name}: {words()}"
        return GateResult(passed=worst <= 1, worst_error_ratio=worst, detail=self._called + detail)

    def failed(self, fault: str) -> GateResult:
        """The result of a fault that has no number."""
        return GateResult(passed=False, worst_error_ratio=None, detail=self._called + fault)

    def _taken(self, actual: Mapping[str, Tensor]) -> Iterator[tuple[str, int, Error, Bias | None]]:
        """Of each tensor but indices: how many elements are not finite, its error, and a signed mean if any.

        The host waits once for all of them: beside other processes on the device each wait takes its turn.
        """
        taken: dict[str, list[Tensor]] = {}
        for name, given in actual.items():
            if name in self._indices:
                continue
            tensor, expected, own = given.detach(), self.expected[name], self._own[name]
            if own.not_finite is not None:
                tensor, expected = (one.masked_fill(own.not_finite, 0) for one in (tensor, expected))
            count = tensor.isfinite().logical_not_().sum().double().unsqueeze(0)
            taken[name] = [count, Error.taken(tensor, expected, self.scales[name])]
            if self._has_signed_mean(name):
                taken[name].append(Bias.taken(tensor, expected))
        numbers = iter(
            torch.cat([part for parts in taken.values() for part in parts]).tolist() if taken else ()
        )
        for name, parts in taken.items():
            count, *values = islice(numbers, sum(map(len, parts)))
            yield name, int(count), Error.read(values[:2]), Bias.read(values[2:]) if values[2:] else None

    def _faults(self, name: str, error: Error, bias: Bias | None) -> list[tuple[float, Callable[[], str]]]:
        """Each measure of an error over what is allowed, with its words."""
        allowed = self.allowed[name]
        if self.expected[name].numel() < SMALL and error.ratio(allowed) > 1:
            allowed = allowed.or_more(self._equations[name].error.allowed(self._tolerance(name)))
        found = [
            (
                error.ratio(allowed),
                lambda: (
                    f"error {error.rms:.2g} RMS and {error.peak:.2g} at most, "
                    f"allowed {allowed.rms:.2g} and {allowed.peak:.2g}, of {self._of}"
                ),
            )
        ]
        if bias is not None:
            torchs = self._own[name].bias
            rounding = signed(name, self._dtype)
            if bias.ratio(torchs, rounding) > 1:
                # no more than rounding twice: written out in 16 bits, some equations are off by 1e-3
                plain = min(abs(self._equations[name].bias.mean), rounding)
                torchs = Bias(max(abs(torchs.mean), plain), torchs.error)
            found.append(
                (
                    bias.ratio(torchs, rounding),
                    lambda: (
                        f"signed mean {bias.mean:.2g} of the mean magnitude, torch's own {torchs.mean:.2g}, "
                        f"{STANDARD_ERRORS} standard errors {STANDARD_ERRORS * bias.error:.2g}, "
                        f"rounding {rounding:.2g}"
                    ),
                )
            )
        return found

    def _has_signed_mean(self, name: str) -> bool:
        """Whether a tensor has enough elements for one, and a gradient comes of enough rows.

        A gradient of few rows has few roundings in it, however many its elements are.
        """
        judged = self._signed and self.expected[name].numel() >= MANY
        return judged and (kind(name) == "output" or self._rows >= SLICES)

    def _reference(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The expected tensors, and those that must be equal: indices of packed sequences."""
        module = self.runs.build(registry.reference)
        self.runs.load(module, torch.float64)
        every, gradients = self.results(module, self.runs.arguments(torch.float64))
        return self._split(every, gradients)

    def _split(
        self, every: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        outputs = only_real(every)
        found = {**outputs, **gradients}
        expected = {name: tensor.detach().to(self._kept) for name, tensor in found.items()}
        return expected, {name: tensor for name, tensor in every.items() if name not in outputs}

    def _scales(self) -> Mapping[str, float | Tensor]:
        """What each tensor's error is relative to."""
        return scales(self.expected)

    def _error(self, tensor: Tensor, expected: Tensor, name: str) -> Error:
        return Error.of(tensor, expected, self.scales[name])

    def _tolerance(self, name: str) -> Tolerance:
        return TOLERANCES[self._dtype, kind(name)]

    def _bound(self) -> tuple[dict[str, Own], str]:
        """What torch does at the problem's precision, and whose it is where it matters.

        The default implementation's; where that is wrong or raises, the equations' in torch's operations.
        """
        name = registry.operator(self.runs.problem.operator).default
        errors, fault = self._errors(registry.implementation(self.runs.problem.operator, name).build, name)
        if not fault:
            return errors, ""
        errors, other = self._errors(registry.reference, "the reference")
        if not other:
            return errors, f"{fault}: the equations in {self.runs.problem['dtype']} set the bound"
        return dict.fromkeys(self.expected, Own()), fault + other

    @cached_property
    def _equations(self) -> Mapping[str, Own]:
        """What the equations in torch's operations err at the problem's precision; 0 where they raise."""
        found, _ = self._errors(registry.reference, "the reference")
        return found or dict.fromkeys(self.expected, Own())

    def _errors(self, build: Callable[[Problem], nn.Module], name: str) -> tuple[dict[str, Own], str]:
        """What a module does in the problem's dtype, and what is wrong with it, in words.

        What runs out of memory says nothing of the equations: the error passes through, and nobody is judged.
        """
        try:
            errors = self._errors_of(self.runs.build(build))
        except Exception as error:
            if is_out_of_memory(error):
                raise
            if self.runs.torch_device != "cpu":
                torch.cuda.synchronize()  # raises where this process can judge nobody any more
            return {}, f"; {name} sets no bound here ({type(error).__name__}: {first_words(error)})"
        worst = max(errors, key=lambda one: errors[one].error.rms / self._tolerance(one).cap)
        if errors[worst].error.rms <= self._tolerance(worst).cap:
            return errors, ""
        return errors, f"; {name} itself is wrong here ({worst}: error {errors[worst].error.rms:.2g} RMS)"

    def _errors_of(self, module: nn.Module) -> dict[str, Own]:
        """What a module does. Raises what it raises, and ValueError for tensors of another form."""
        self.runs.load(module, self._dtype)
        every, gradients = self.results(module, self.runs.arguments(self._dtype))
        if fault := self.form(every, "output") or self.form(gradients, "gradient"):
            raise ValueError(fault)
        actual = {**every, **gradients}
        return {name: self._own_of(actual[name], name) for name in self.expected}

    def _own_of(self, tensor: Tensor, name: str) -> Own:
        expected = self.expected[name]
        bias = Bias.of(tensor.detach(), expected) if self._has_signed_mean(name) else Bias(0.0, 0.0)
        return Own(self._error(tensor.detach(), expected, name), bias)


def _rows(arguments: tuple[Any, ...]) -> int:
    """How many rows the first tensor of the arguments has: those of a vector are its elements."""
    first = next(iter(flatten("argument", arguments).values()))
    return first.numel() if first.dim() < 2 else first.numel() // max(first.size(-1), 1)
