"""Choices for a model that keeps its GPU busy: by the device's own time.

Alone, a layer waits for the host to launch it, and what it takes then is what `selector.choose` goes by. In a
model the host launches the next layers while the device still works on these: a step takes the longer of what
all layers take of the device and of the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kernel_selector.kernels.contract import Problem, SelectorError

from ...planning.ask import prices_on
from ...planning.integer_program import shortest_step
from ...planning.layer_costs import MEASURED
from ...planning.options import Option, Prices
from ...planning.training_setup import Training
from ...selection.policy import least_gain
from ...text.units import format_ms
from ...workloads.model import Part
from ..layers import Layer

# what compiles at its first call: a compiler's user compiles the model, not layer by layer
LEFT_TO_THE_COMPILER = ("torch_compile", "torch_compile_recompute")
# as many times as by itself may a layer take the host in a model, between others: BERT- and RoBERTa-large
# took 1.6 to 2.1 times their layers' sum on the hosts of H200s
SLOWER_IN_MODELS = 2.0


class DeviceTimes:
    """Implementations for a model's layers by the device's time in a training step, from measurements.

    In come the layers that an example ran, out come an implementation and milliseconds for each problem;
    nothing on devices that are no GPU. What is fastest on the device often takes the host longer to launch:
    each problem gets what makes a step shortest, its longer side of device and host, as in a plan without a
    memory limit. Where steps are `replayed` the host's time is nothing. Raises the errors of the database.
    """

    def __init__(
        self, layers: Sequence[Layer], device: str, database: Any, *, replayed: bool = False
    ) -> None:
        self._left_out = () if replayed else LEFT_TO_THE_COMPILER
        self._prices = prices_on(device, Training(cuda_graphs=replayed), database)
        calls: Counter[Problem] = Counter()
        if self._prices.device.kind == "cuda":
            for layer in layers:
                if layer.problem["mode"] == "training":
                    calls[layer.problem] += layer.calls
        self._options = {problem: _options(self._prices, problem, self._left_out) for problem in calls}
        self._replayed = replayed
        able = {
            _part(problem, calls[problem]): found for problem in calls if (found := self._choices(problem))
        }
        # nothing is known to be faster where the host is waited for even if all is launched as soon as can be
        soonest = {part: min(some, key=lambda one: one.host_ms) for part, some in able.items()}
        device_ms, host_ms = _step(soonest)
        self._known = replayed or device_ms > host_ms
        best = shortest_step(list(able), list(able.values()), host=self._known and not replayed)
        chosen = dict(zip(able, best, strict=True))
        self._step = _step(chosen)
        self._best = {part.problem: option for part, option in chosen.items()}

    @property
    def advice(self) -> tuple[str, ...]:
        """Advice where a step may wait for the host; none where it does not, or where it is replayed."""
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
        default = next((one for one in self._options.get(problem, ()) if one.default), None)
        best = self._best.get(problem)
        if default is None or best is None or not self._known:
            return None
        times = (
            f"{format_ms(best.device_ms)} of the device's time, {format_ms(default.device_ms)} by torch's own"
        )
        if best.device_ms * (1 + least_gain()) < default.device_ms:
            return best.implementation, f"{times}, {best.source}"
        return (default.implementation, f"{times} at best, {best.source}") if self._replayed else None

    def ms(self, problem: Problem, name: str | None = None) -> float | None:
        """The device's time for a problem by what it gets, or by one implementation; None where unknown."""
        if not self._known:
            return None
        if problem not in self._options:
            self._options[problem] = _options(self._prices, problem, self._left_out)
        able = [one for one in self._options[problem] if name in (None, one.implementation)]
        if name is None and able and problem in self._best:
            return self._best[problem].device_ms
        return min((one.device_ms for one in able), default=None)

    def _choices(self, problem: Problem) -> list[Option]:
        """What a problem can get. Where nothing alike was measured a step takes time for it too, at least as
        little as any may need by the work that it is.
        """
        found = _foretold(self._prices, problem)
        return self._options[problem] or sorted(found, key=lambda one: one.device_ms)[:1]


def _part(problem: Problem, count: int) -> Part:
    return Part(name="", problem=problem, count=count, output_bytes=0)


def _step(chosen: Mapping[Part, Option]) -> tuple[float, float]:
    """Milliseconds of device and host, of all layers."""
    device_ms = sum(one.device_ms * part.count for part, one in chosen.items())
    return device_ms, sum(one.host_ms * part.count for part, one in chosen.items())


def _options(prices: Prices, problem: Problem, left_out: Sequence[str]) -> list[Option]:
    """What was measured of a problem's implementations, or of others at sizes or shares like its own."""
    known = [one for one in _foretold(prices, problem) if one.implementation not in left_out]
    known = [one for one in known if one.source != "counted"]
    return known if any(one.source in MEASURED for one in known) else []


def _foretold(prices: Prices, problem: Problem) -> list[Option]:
    """What is known, or can be counted, of a problem's implementations."""
    try:
        return list(prices.options(_part(problem, 1)))
    except SelectorError:
        return []
