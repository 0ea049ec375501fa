"""The check of what drops at random: which elements, from which seed, and the same ones in backward.

A comparison with the equations needs nothing dropped, and so sees nothing of a module's masks. Here each
module runs with its `dropout` set to SHARE, and then at the problem's own share:

- A second run draws other elements, without a new seed. Equal seeds give equal results, within the
  tolerance of the comparison: another mask changes them by orders of magnitude more than sums that are
  taken in another order do.
- Other seeds give other results, as far from the undropped ones as those of torch's own module, and so is
  their mean over several seeds: another share dropped changes the first, a missing 1 / (1 - p) the second.
  Rows, and places in them, are dropped independently, as far as torch's own are: with one mask for all rows,
  what belongs to a place is changed alike in all of them.
- Backward has the mask of forward. For the weighted sum F of the outputs under one seed, the gradients say
  how much F changes along a direction; two forward runs under that seed show how much it does. One
  direction is where the gradients of two seeds differ: what no mask touches cancels there, and a backward
  pass with a mask of its own predicts a change that does not come. Two are random, of arguments and of
  parameters: in the first direction, one that drops nothing is right on average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .. import registry
from ..runtime.out_of_memory import is_out_of_memory
from .answer import Answer
from .poison import poisoned_memory
from .runs import Results, flatten, only_real
from .slope import at_random, numbers, slope, uphill
from .tolerance import (
    ALIKE,
    CHANCE,
    CLEAR,
    DEVIATION,
    DIFFERENCES,
    MEAN_RUN,
    ONE_RUN,
    SLOPE,
    UNCERTAIN,
    Error,
    of_slices,
)

# not 0.5, where keeping what is to be dropped could not be told from dropping it
SHARE = 0.3
SEED = 20
# draws until two differ: an only element is dropped alike by so many seeds once in a million times
SEEDS = 40
# runs whose distance from the undropped outputs is taken, and their mean's; two groups of torch's own module
GROUP = 8


# results of a share that drop fewer elements than this in all seeds may be the same by chance
FEWEST = 20


class TorchsOwn(NamedTuple):
    """Dropout of torch's own module on the problem, measured at one share of dropped elements."""

    drops: bool
    follows_seeds: bool
    advances: bool  # the random state: a second call drops others
    distance: float  # of dropped outputs from undropped ones, mean over seeds; 0 where not known
    spread: float  # standard deviation of that over seeds, as a share of it
    of_means: float  # distance of the mean of GROUP seeds' outputs
    alike: Mapping[str, float]  # how much more slices along an axis change together than elements alone do


class DropoutCheck:
    """Judges modules with elements dropped, against the outputs of the answer, which are without."""

    def __init__(self, answer: Answer) -> None:
        self._runs = answer.runs
        self._expected = answer.expected
        self._scales: Mapping[str, float] = answer.scales
        self._allowed = answer.allowed
        self._known: dict[float, TorchsOwn] = {}

    def check(self, module: nn.Module) -> tuple[str, str]:
        """The fault in words, or empty; and a note for the detail of a result that passes.

        The module is loaded; it is left so.
        """
        notes = []
        for share in dict.fromkeys((SHARE, *self._own_share())):
            fault, note = self._check(module, share)
            if fault:
                return f"with dropout set to {share:g}: {fault}", ""
            notes.append(note)
        return "", "".join(dict.fromkeys(notes))

    def _own_share(self) -> list[float]:
        """The problem's, where it drops some elements, and enough of them to say something."""
        share = float(self._runs.problem["dropout"])
        least = min(tensor.numel() for name, tensor in self._expected.items() if name.startswith("output"))
        return [share] if share < 1 and SEEDS * share * least >= FEWEST else []

    def _check(self, module: nn.Module, share: float) -> tuple[str, str]:
        with self._runs.dropping(module, share), self._own_random_state(), poisoned_memory():
            first = self._runs.seeded(module, SEED)
            if fault := _not_finite(first):
                return fault, ""
            torchs = self._torchs(share)
            if not torchs.drops:
                return self._dropped_in_vain(first), "; torch drops nothing here"
            again = self._runs.seeded(module, SEED)
            advances = not torchs.advances or self._advances(module, again)
            if differing := self._differing(first, again):
                if not torchs.follows_seeds:
                    return "", "; masks not judged: as torch's own, they do not follow torch.manual_seed"
                return f"{differing} is another after the same torch.manual_seed", ""
            del again
            other = self._other(module, first)
            if other is None:
                return f"outputs are the same for {SEEDS} seeds: nothing is dropped at random", ""
            if not advances:
                return "a second call drops the same elements: the random state is not advanced", ""
            if fault := self._unlike_torch(module, torchs):
                return fault, ""
            return self._backward(module, first, other)

    @contextmanager
    def _own_random_state(self) -> Iterator[None]:
        device = torch.device(self._runs.torch_device)
        with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type="cuda"):
            yield

    def _differing(self, one: Results, two: Results, times: float = 1) -> str:
        """The first tensor that is not the same in both, within so many times what is allowed; or empty."""
        before, after = ({**each.outputs, **each.gradients} for each in (one, two))
        taken = [Error.taken(after[name], tensor, self._scales[name]) for name, tensor in before.items()]
        for name, pair in zip(before, torch.stack(taken).tolist(), strict=True):  # the host waits once
            if Error.read(pair).ratio(self._allowed[name]) > times:
                return name
        return ""

    def _advances(self, module: nn.Module, before: Results) -> bool:
        """Whether a following call, without a new seed, has other outputs: of few elements not each has."""
        with torch.no_grad():
            for _ in range(SEEDS):
                following = only_real(flatten("output", module(*self._runs.arguments(self._runs.dtype))))
                if not _same(before.outputs, following):
                    return True
        return False

    def _other(self, module: nn.Module, first: Results) -> Results | None:
        """Results of another seed whose outputs are not the first's."""
        for seed in range(SEED + 1, SEED + SEEDS):
            found = self._runs.seeded(module, seed)
            if not _same(first.outputs, found.outputs):
                return found
        return None

    def _deviation(self, outputs: Mapping[str, Tensor]) -> float:
        """RMS distance of dropped outputs from undropped ones, over all, in units of each tensor's scale."""
        squares = torch.stack(
            [
                ((tensor.double() - self._expected[name]) / self._scales[name]).square().sum()
                for name, tensor in outputs.items()
            ]
        )
        return float((squares.sum() / max(sum(tensor.numel() for tensor in outputs.values()), 1)).sqrt())

    def _dropped_in_vain(self, first: Results) -> str:
        for name, tensor in first.outputs.items():
            if Error.of(tensor, self._expected[name], self._scales[name]).ratio(self._allowed[name]) > 1:
                return f"{name} has elements dropped, where torch drops nothing"
        return ""

    def _unlike_torch(self, module: nn.Module, torchs: TorchsOwn) -> str:
        """Whether outputs are farther from the undropped ones than torch's or nearer, where one can tell."""
        if not torchs.distance:
            return ""
        distances, of_mean, alike = self._moments(module, SEED)
        found = sum(distances) / GROUP
        pairs = (("", found, torchs.distance, ONE_RUN), ("on average ", of_mean, torchs.of_means, MEAN_RUN))
        for word, ours, theirs, errors in pairs:
            if abs(ours / theirs - 1) > DEVIATION + errors * torchs.spread:
                return (
                    f"outputs are {word}{ours:.2g} RMS from the undropped ones, those of torch {theirs:.2g}: "
                    "another share is dropped, or what is kept is not scaled by 1 / (1 - p)"
                )
        for place, ratio in alike.items():
            if ratio > ALIKE * max(torchs.alike.get(place, 1.0), 1.0):
                return (
                    f"{place} are dropped alike: they change together {ratio:.2g} times as much as elements "
                    f"alone, those of torch {torchs.alike.get(place, 1.0):.2g} times"
                )
        return ""

    def _chance(self) -> float:
        """The spread that few outputs have by chance, or few large ones among many."""
        outputs = [one for name, one in self._expected.items() if name.startswith("output")]
        squares = torch.cat([one.double().square().flatten() for one in outputs])
        return CHANCE * float(squares.square().sum().sqrt() / squares.sum().clamp(min=1e-300))

    def _moments(self, module: nn.Module, seed: int) -> tuple[list[float], float, dict[str, float]]:
        """Of the outputs of GROUP seeds: distances from the undropped ones, that of their mean, `_alike`."""
        distances, means, alike = [], dict[str, Tensor](), dict[str, float]()
        for sample in self._samples(module, seed, GROUP):
            distances.append(self._deviation(sample))
            for name, tensor in sample.items():
                means[name] = tensor.double() / GROUP + means.get(name, 0.0)
                for place, ratio in self._alike(name, tensor).items():
                    alike[place] = alike.get(place, 0.0) + ratio / GROUP
        return distances, self._deviation(means), alike

    def _alike(self, name: str, tensor: Tensor) -> dict[str, float]:
        """How much slices along each axis change together: 1 where elements change by themselves."""
        expected = self._expected[name].double()
        change = (tensor.double() - expected) * expected
        slices = of_slices(change)
        total, *sums = numbers([change.square().sum(), *slices.values()])
        places = [f"all of {name} at one place of axis {axis}" for axis in slices]
        return {place: one / total for place, one in zip(places, sums, strict=True)} if total else {}

    def _samples(self, module: nn.Module, seed: int, count: int) -> Iterator[dict[str, Tensor]]:
        """Outputs of as many seeds, one after another."""
        for turn in range(count):
            with torch.no_grad():
                yield self._runs.outputs(module, self._runs.arguments(self._runs.dtype), seed + turn)

    def _backward(self, module: nn.Module, first: Results, other: Results) -> tuple[str, str]:
        """Whether the gradients of a run say how the outputs under its seed change; see `check`."""
        errors = {name: self._allowed[name].rms * scale for name, scale in self._scales.items()}
        leaves = self._runs.leaves(module, self._runs.arguments(self._runs.dtype))
        if not uphill(leaves, first, other, errors).units and self._differing(first, other, 2 * CLEAR):
            return "outputs differ for two seeds, gradients do not: backward drops nothing", ""
        along = uphill(leaves, first, other, {name: CLEAR * error for name, error in errors.items()})
        # it is uphill from one of the two, if not from both
        start = max(first, other, key=lambda one: along.size(one.gradients, along.units))
        judged = False
        for direction in (along, *at_random(along, SEED)) if along.units else ():
            misses = []
            for share in DIFFERENCES[self._runs.dtype]:
                found = slope(self._runs, module, start, direction, errors=errors, share=share)
                if found.uncertainty <= UNCERTAIN:
                    judged = True
                    misses.append(max(found.miss - found.uncertainty, 0.0))
                    if misses[-1] <= SLOPE:
                        break
            else:
                if misses:
                    return f"backward has another mask than forward: {_percent(misses)}", ""
        if judged:
            return "", "; masks judged"
        return "", "; masks not judged in backward, where they change less than rounding may"

    def _torchs(self, share: float) -> TorchsOwn:
        if share not in self._known:
            self._known[share] = self._torchs_own(share)
        return self._known[share]

    def _torchs_own(self, share: float) -> TorchsOwn:
        operator = registry.operator(self._runs.problem.operator)
        try:
            module = self._runs.build(registry.implementation(operator.name, operator.default).build)
            self._runs.load(module)
            with self._runs.dropping(module, share):
                first, again = (Results(SEED, next(self._samples(module, SEED, 1)), {}) for _ in range(2))
                with torch.no_grad():
                    following = only_real(flatten("output", module(*self._runs.arguments(self._runs.dtype))))
                moments = [self._moments(module, seed) for seed in (SEED, SEED + GROUP)]
        except Exception as error:  # the comparison has said so: see Gate
            if is_out_of_memory(error):
                raise
            return TorchsOwn(True, True, True, 0.0, 0.0, 0.0, {})
        distances = torch.tensor([one for several, _, _ in moments for one in several], dtype=torch.float64)
        return TorchsOwn(
            drops=bool(self._dropped_in_vain(first)),  # what is kept is scaled, and so differs too
            follows_seeds=not self._differing(first, again),
            advances=not _same(again.outputs, following),
            distance=(mean := float(distances.mean())),
            spread=max(
                float(distances.std()) / mean if mean else 0.0, self._chance() if share != SHARE else 0.0
            ),
            of_means=sum(of_mean for _, of_mean, _ in moments) / 2,
            alike={place: max(alike[place] for _, _, alike in moments) for place in moments[0][2]},
        )


def _same(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(tensor, two[name]) for name, tensor in one.items())


def _percent(misses: list[float]) -> str:
    found = " and ".join(f"{miss:.0%}" for miss in misses)
    return f"after steps in one direction, outputs are {found} of the way from where gradients say"


def _not_finite(results: Results) -> str:
    every = {**results.outputs, **results.gradients}
    for name, finite in zip(every, numbers(one.isfinite().all() for one in every.values()), strict=True):
        if not finite:
            return f"{name} has elements that are not finite"
    return ""
