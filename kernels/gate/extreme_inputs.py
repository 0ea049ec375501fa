"""Rows out of the ordinary: arguments of the sizes at which careless arithmetic overflows or cancels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from .. import registry
from ..contract import Inputs, Problem
from .answer import Answer, Own
from .runs import Runs, map_tensors, real
from .tolerance import HARD_PEAK, HARD_TIMES, HARD_WIDE, SMALL, Error, Tolerance, kind, scales

BLOCK = 32  # elements of a vector that count as a row
KINDS_OF = ("output", "gradient")
EQUAL = 100.5  # of few bits: any order of adding up a row of them is exact


def _outliers(row: Tensor) -> Tensor:
    """A few elements ten times as large as the others."""
    row = row.clone()
    row[..., ::37] *= 10
    return row


def _nearly_nothing(row: Tensor) -> Tensor:
    """-0 in turns with the smallest numbers below the normal ones."""
    least = torch.finfo(row.dtype).smallest_normal / 2
    odd = torch.arange(row.shape[-1], device=row.device) % 2 == 1
    return torch.where(odd, least * row.sign(), -torch.zeros_like(row))


# in turns, among rows left as they are. Only a first argument's are large as a whole: products of two that
# are leave nothing to judge in a softmax
KINDS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda row: 30 * row,
    lambda row: 100 + row,
    lambda row: torch.full_like(row, EQUAL),
    _outliers,
    _nearly_nothing,
    lambda row: row,
)
SMALL_KINDS = (_outliers, _nearly_nothing, lambda row: torch.full_like(row, 0.5), lambda row: row)


def hard_inputs(inputs: Inputs) -> Inputs:
    """The same parameters, and arguments with every kind of row; integers and masks stay."""
    places = count()

    def harden(tensor: Tensor) -> Tensor:
        place = next(places)
        if not real(tensor) or not tensor.numel():
            return tensor
        kinds = SMALL_KINDS if place else KINDS
        found = tensor.clone(memory_format=torch.contiguous_format)
        rows = in_rows(found)
        for index, changed in enumerate(kinds):
            rows[index :: len(kinds)] = changed(rows[index :: len(kinds)])
        return found

    return replace(inputs, args=map_tensors(harden, inputs.args))


def in_rows(tensor: Tensor) -> Tensor:
    """A contiguous tensor as [rows, elements]: a vector in blocks, without what is left after them."""
    if tensor.dim() > 1:
        return tensor.view(-1, tensor.shape[-1])
    whole = tensor.numel() // BLOCK * BLOCK
    return tensor.view(-1)[:whole].view(-1, BLOCK) if whole else tensor.view(1, -1)


def row_scales(expected: Tensor, least: float) -> Tensor:
    """Scale of each element's error: the RMS of its row, or of the median row where that is more.

    Else an error in plain rows would be lost beside large ones, and one in rows of nearly nothing count for
    more than it does.
    """
    rows = in_rows(expected.contiguous()).double().square().mean(-1).sqrt()
    some = rows[rows > 0]
    typical = max(float(some.median()) if some.numel() else 1.0, least)
    rows = rows.clamp(min=typical)
    if expected.dim() > 1:
        return rows.view(*expected.shape[:-1], 1)
    each = rows.repeat_interleave(BLOCK)[: expected.numel()]
    rest = each.new_full((expected.numel() - each.numel(),), typical)
    return torch.cat([each, rest]).view(expected.shape)


class HardRuns(Runs):
    """Runs with `hard_inputs`; without gradients where these hang on which side of a kink a number is.

    Large rows have some numbers within a rounding error of the kink of a relu, and what is on its other side
    has another gradient.
    """

    def __init__(self, problem: Problem, torch_device: str, seed: int, inputs: Inputs) -> None:
        super().__init__(problem, torch_device, seed, hard_inputs(inputs))
        values = problem.as_dict
        self._kinked = "relu" in (values.get("activation"), values.get("nonlinearity"))

    def gradients(
        self, module: nn.Module, arguments: tuple[Any, ...], outputs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The gradients as in `Runs`; none where they hang on which side of a kink a number is."""
        return {} if self._kinked else super().gradients(module, arguments, outputs)


class HardAnswer(Answer):
    """The answer for rows out of the ordinary: no more than HARD_TIMES what torch's own errs there.

    How much a large row errs is chance: of few rows, of the order of a sum, of a wider format in between. So
    torch's own is the largest of three: the default implementation, the equations in torch's operations at
    the problem's precision, and what float64 makes of arguments that are rounded to float32 once more. An
    element at which the default is not finite is not judged. There is no cap: where the arguments allow no
    better, torch's own is the measure. The default counts where it is `trusted`: right in other calls.
    """

    def __init__(self, runs: HardRuns, *, trusted: bool) -> None:
        self._trusted = trusted
        super().__init__(runs, "rows out of the ordinary: ", of="each row's RMS", signed=False)

    def _scales(self) -> Mapping[str, float | Tensor]:
        pooled = scales(self.expected)
        # of few elements all gradients may be next to nothing, as those of an activation's tail are
        least = {
            of: max([one for name, one in pooled.items() if kind(name) == of] or [0.0]) for of in KINDS_OF
        }
        return {
            name: row_scales(tensor, least[kind(name)] if tensor.numel() < SMALL else 0.0)
            for name, tensor in self.expected.items()
        }

    def _tolerance(self, name: str) -> Tolerance:
        """Without a cap, and with a higher floor for few elements, of which torch's own error is chance.

        In float64 the answer errs as much as anybody: there the floor is HARD_WIDE.
        """
        known, count = super()._tolerance(name), self.expected[name].numel()
        floor = HARD_WIDE if self._dtype == torch.float64 else known.floor
        return Tolerance(floor=floor * max(1.0, SMALL / max(count, 1)) ** 0.5, cap=math.inf, peak=HARD_PEAK)

    def _bound(self) -> tuple[dict[str, Own], str]:
        name = registry.operator(self.runs.problem.operator).default
        build = registry.implementation(self.runs.problem.operator, name).build
        default, fault = self._errors(build, name) if self._trusted else ({}, "; ")
        equations, other = self._errors(registry.reference, "the reference")
        if fault and other:
            return dict.fromkeys(self.expected, Own()), fault + other
        rounded = self._rounded()
        bounds = {}
        for one in self.expected:
            owns = [own[one] for own in (default, equations) if own]
            worst = _larger([*(own.error for own in owns), rounded[one]])
            half = HARD_TIMES / 2  # of a bound twice are allowed
            bounds[one] = Own(Error(half * worst.rms, half * worst.peak), not_finite=owns[0].not_finite)
        return bounds, fault if self._trusted else ""

    def _rounded(self) -> dict[str, Error]:
        """What rounding each argument twice changes, up or down by chance, in float64."""
        unit = torch.finfo(self._kept).eps / 2
        generator = torch.Generator(self.runs.torch_device).manual_seed(0)

        def move(tensor: Tensor) -> Tensor:
            if not real(tensor):
                return tensor
            # of each element by itself, and of a whole row alike, as a factor that is rounded does
            shapes = (tensor.shape, (*tensor.shape[:-1], 1))
            signs = [
                torch.randint(2, shape, generator=generator, device=tensor.device) * 2 - 1 for shape in shapes
            ]
            moved = tensor.detach() * (1 + unit * (signs[0] + signs[1]).double())
            return moved.requires_grad_(tensor.requires_grad)

        module = self.runs.build(registry.reference)
        self.runs.load(module, torch.float64)
        arguments = map_tensors(move, self.runs.arguments(torch.float64))
        every, gradients = self.results(module, arguments)
        return {name: self._own_of({**every, **gradients}[name], name).error for name in self.expected}

    def _own_of(self, tensor: Tensor, name: str) -> Own:
        expected, found = self.expected[name], tensor.detach()
        not_finite = ~(found.isfinite() & expected.isfinite())
        if not bool(not_finite.any()):
            return Own(self._error(found, expected, name))
        found, expected = (one.masked_fill(not_finite, 0) for one in (found, expected))
        return Own(self._error(found, expected, name), not_finite=not_finite)


def _larger(errors: list[Error]) -> Error:
    """The larger RMS and the larger maximum, of those that are numbers."""
    finite = [one for one in errors if math.isfinite(one.rms)] or [Error(0.0, 0.0)]
    return Error(max(one.rms for one in finite), max(one.peak for one in finite))
