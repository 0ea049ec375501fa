"""Check of gradients against a difference quotient of the outputs, in any dtype.

F is the sum of the outputs, weighted as for the gradients, in float64. What rounding does to F is small
beside a step that changes F by a share of its terms, and what it may be is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .runs import Results, Runs
from .tolerance import group

LONGEST = 0.25  # of a step, as a share of each leaf's RMS


class Direction(NamedTuple):
    """Direction of arguments and parameters: a unit for each, and whether all effects on F add up."""

    units: Mapping[str, Tensor]
    uphill: bool

    def size(self, gradients: Mapping[str, Tensor], units: Mapping[str, Tensor]) -> float:
        """Change of F along the direction; for random effects, the root of the sum of their squares."""
        if self.uphill:
            return abs(_sum((gradients[name], unit) for name, unit in units.items()))
        return _norm({name: gradients[name].double() * unit for name, unit in units.items()})


class Slope(NamedTuple):
    """Distance of F after a step from what gradients say, as a share of the step: 0 where they are right."""

    miss: float
    uncertainty: float  # what rounding may do to it


def uphill(leaves: Mapping[str, Tensor], one: Results, two: Results, noise: Mapping[str, float]) -> Direction:
    """The signs of the difference between two runs' gradients, times the RMS of the leaf that it belongs to.

    Leaves are left out whose gradients differ by no more than `noise` (RMS): sums taken in another order.
    Signs, because every element then moves alike, and a step stays a small one in every place.
    """
    apart = (
        (name, gradient.double() - two.gradients[name].double()) for name, gradient in one.gradients.items()
    )
    units, sizes = {}, []
    for name, difference in apart:
        units[name] = difference.sign() * leaves[name].detach().double().square().mean().sqrt()
        sizes.append(difference.square().mean().sqrt())
    above = zip(units.items(), numbers(sizes), numbers(unit.any() for unit in units.values()), strict=True)
    found = {name: unit for (name, unit), size, some in above if size > noise[name] and some}
    return Direction(found, uphill=True)


def at_random(direction: Direction, seed: int) -> list[Direction]:
    """Random signs in the same leaves: in the arguments, and in the parameters."""
    groups: dict[str, dict[str, Tensor]] = {}
    for place, (name, unit) in enumerate(direction.units.items()):
        generator = torch.Generator(unit.device).manual_seed(seed + place)
        signs = torch.randint(2, unit.shape, generator=generator, device=unit.device) * 2 - 1
        groups.setdefault(group(name), {})[name] = signs * unit.abs().max()
    return [Direction(units, uphill=False) for units in groups.values()]


def slope(
    runs: Runs,
    module: nn.Module,
    start: Results,
    direction: Direction,
    *,
    errors: Mapping[str, float],
    share: float,
) -> Slope:
    """A step with its middle where a run had the results `start`, under its seed.

    It changes F by about `share` of its terms, where effects are random by four times that, and is at most
    LONGEST. `errors` are what an element of each output and gradient may be wrong by, at random.
    """
    weights = {name: weight.double() for name, weight in runs.weights(start.outputs).items()}
    terms = {name: weight * start.outputs[name] for name, weight in weights.items()}
    size = sum(numbers(one.abs().sum() for one in terms.values())) if direction.uphill else 4 * _norm(terms)
    steepness = direction.size(start.gradients, direction.units)
    half = min(share * size, LONGEST * steepness) / steepness / 2 if steepness else LONGEST / 2
    sums: list[float] = []
    ends: list[dict[str, Tensor]] = []
    for step in (half, -half):
        with _moved(runs, module, direction.units, step) as (arguments, places), torch.no_grad():
            outputs = runs.outputs(module, arguments, start.seed)
        sums.append(_sum((weights[name], one) for name, one in outputs.items()))
        ends.append(places)
    # the way that was gone, which rounding to the dtype has changed
    ways = {name: ends[0][name] - ends[1][name] for name in direction.units}
    said = _sum((start.gradients[name], way) for name, way in ways.items())
    rounding = _norm(
        {name: weight * (errors[name] * 2**0.5) for name, weight in weights.items()}
        | {name: way * errors[name] for name, way in ways.items()}
    )
    gone = direction.size(start.gradients, ways)
    return Slope(abs(sums[0] - sums[1] - said) / gone, rounding / gone) if gone else Slope(math.inf, math.inf)


def numbers(scalars: Iterable[Tensor]) -> list[float]:
    """The values of tensors [] of one device and dtype, for which the host waits once."""
    several = list(scalars)
    return torch.stack(several).tolist() if several else []


def _sum(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    return sum(numbers((one.double() * two.double()).sum() for one, two in pairs))


def _norm(tensors: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(numbers(tensor.square().sum() for tensor in tensors.values())))


@contextmanager
def _moved(
    runs: Runs, module: nn.Module, units: Mapping[str, Tensor], step: float
) -> Iterator[tuple[tuple[Any, ...], dict[str, Tensor]]]:
    """Arguments and parameters moved by a step; gives the arguments, and where all are, in float64."""
    arguments = runs.arguments(runs.dtype)
    leaves = {name: leaf for name, leaf in runs.leaves(module, arguments).items() if name in units}
    before = {name: leaf.detach().clone() for name, leaf in leaves.items()}
    try:
        with torch.no_grad():
            for name, leaf in leaves.items():
                leaf.copy_(before[name].double() + step * units[name])
        yield arguments, {name: leaf.detach().to(torch.float64, copy=True) for name, leaf in leaves.items()}
    finally:
        with torch.no_grad():
            for name, leaf in leaves.items():
                leaf.copy_(before[name])
