"""Choices for a model that keeps its GPU busy: by the device's own time.

Alone, a layer waits for the host to launch it, and what it takes then is what `selector.choose` goes by. In a
model the host launches the next layers while the device still works on these: a step takes the longer of what
all layers take of the device and of the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from kernel_selector.kernels.contract import Problem, SelectorError

from ...planning.ask import prices_on
from ...planning.options import MEASURED, Option, Prices
from ...planning.training_setup import Training
from ...selection.policy import LEAST_MARGIN
from ...text.units import format_ms
from ...workloads.model import Part
from ..layers import Layer

# what compiles at its first call: a compiler's user compiles the model, not layer by layer
COMPILED = ("torch_compile", "torch_compile_recompute")
# as many times as by itself may a layer take the host in a model, between others: BERT- and RoBERTa-large
# took 1.6 to 2.1 times their layers' sum on the hosts of H200s
SLOWER_IN_MODELS = 2.0


class DeviceTimes:
    """What layers in training take of a GPU's time, from measurements; nothing on other devices.

    What is fastest on the device often takes the host longer to launch. Each problem gets the option of the
    least device + exchange * host milliseconds, at the one rate of exchange by which a step is shortest: its
    longer side of the two, summed over all layers. Where steps are `replayed` the host's time is nothing.
    Raises the errors of the database.
    """

    def __init__(
        self, layers: Sequence[Layer], device: str, database: Any, *, replayed: bool = False
    ) -> None:
        self._left_out = () if replayed else COMPILED
        self._prices = prices_on(device, Training(cuda_graphs=replayed), database)
        self._options: dict[Problem, list[Option]] = {}
        calls: Counter[Problem] = Counter()
        if self._prices.device.kind == "cuda":
            for layer in layers:
                if layer.problem["mode"] == "training":
                    calls[layer.problem] += layer.calls
        self._options = {problem: _options(self._prices, problem, self._left_out) for problem in calls}
        choices = [(self._choices(problem), count) for problem, count in calls.items()]
        self._replayed, self._exchange = replayed, 0.0 if replayed else _exchange(choices)
        self._step = _step(choices, self._exchange or 0.0)

    @property
    def advice(self) -> tuple[str, ...]:
        """That a step may wait for the host, in words; nothing where it does not, or where it is replayed."""
        device_ms, host_ms = self._step
        if self._replayed or host_ms * SLOWER_IN_MODELS <= device_ms:
            return ()
        words = (
            f"Launching its layers one by one takes the host {format_ms(host_ms)} and more a step, and the "
            f'device computes for {format_ms(device_ms)}: with objective="device_time" blocks are launched '
            "as CUDA graphs."
        )
        return (words,)

    def faster(self, problem: Problem) -> tuple[str, str] | None:
        """The implementation that the device takes less time for than for the framework's own, by more than
        noise, and why, in words; None where there is none that is worth the host's time. Of steps that are
        replayed the framework's own is said, too.
        """
        options = self._options.get(problem, [])
        default = next((one for one in options if one.default), None)
        if default is None or self._exchange is None:
            return None
        best = _best(options, self._exchange)
        times = (
            f"{format_ms(best.device_ms)} of the device's time, {format_ms(default.device_ms)} by torch's own"
        )
        if best.device_ms * (1 + LEAST_MARGIN) < default.device_ms:
            return best.implementation, f"{times}, {best.source}"
        return (default.implementation, f"{times} at best, {best.source}") if self._replayed else None

    def ms(self, problem: Problem, name: str | None = None) -> float | None:
        """The device's time for a problem by what it gets, or by one implementation; None where unknown."""
        if self._exchange is None:
            return None
        if problem not in self._options:
            self._options[problem] = _options(self._prices, problem, self._left_out)
        able = [one for one in self._options[problem] if name in (None, one.implementation)]
        return _best(able, self._exchange).device_ms if able else None

    def _choices(self, problem: Problem) -> list[Option]:
        """What a problem can get. Where nothing alike was measured a step takes time for it too, at least as
        little as any may need by the work that it is.
        """
        found = _foretold(self._prices, problem)
        return self._options[problem] or sorted(found, key=lambda one: one.device_ms)[:1]


def _best(options: Sequence[Option], exchange: float) -> Option:
    return min(options, key=lambda one: one.device_ms + exchange * one.host_ms)


def _exchange(layers: Sequence[tuple[Sequence[Option], int]]) -> float | None:
    """The rate that makes a step shortest, the lowest of equals; None where the host is waited for even if
    each layer takes what is launched soonest.
    """
    known = [(options, count) for options, count in layers if options]
    soonest = [(min(options, key=lambda one: one.host_ms), count) for options, count in known]
    if sum((one.device_ms - one.host_ms) * count for one, count in soonest) <= 0:
        return None
    return min(_rates(options for options, _ in known), key=lambda rate: (max(_step(known, rate)), rate))


def _step(layers: Sequence[tuple[Sequence[Option], int]], exchange: float) -> tuple[float, float]:
    """Milliseconds of device and host with each layer's best option."""
    found = [(_best(options, exchange), count) for options, count in layers if options]
    device_ms = sum(one.device_ms * count for one, count in found)
    return device_ms, sum(one.host_ms * count for one, count in found)


def _rates(layers: Iterable[Sequence[Option]]) -> list[float]:
    """0, and a rate between each two at which any layer's best option changes."""
    changes = {
        (slow.device_ms - fast.device_ms) / (fast.host_ms - slow.host_ms)
        for options in layers
        for fast in options
        for slow in options
        if fast.device_ms < slow.device_ms and fast.host_ms > slow.host_ms
    }
    ordered = sorted(changes)
    between = [(low + high) / 2 for low, high in pairwise(ordered)]
    return [0.0, *between, *(2 * one for one in ordered[-1:])]


def _options(prices: Prices, problem: Problem, left_out: Sequence[str]) -> list[Option]:
    """What was measured of a problem's implementations, or of others at sizes or shares like its own."""
    known = [one for one in _foretold(prices, problem) if one.implementation not in left_out]
    known = [one for one in known if one.source != "counted"]
    return known if any(one.source in MEASURED for one in known) else []


def _foretold(prices: Prices, problem: Problem) -> list[Option]:
    """What is known, or can be counted, of a problem's implementations."""
    try:
        return list(prices.options(Part(name="", problem=problem, count=1, output_bytes=0)))
    except SelectorError:
        return []
