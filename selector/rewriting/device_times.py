"""Choices for a model that keeps its GPU busy: by the device's own time.

Alone, a layer waits for the host to launch it, and what it takes then is what `selector.choose` goes by. In a
model the host launches the next layers while the device still works on these, unless all of them are small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernel_selector.kernels.contract import Problem, SelectorError

from ..layers import Layer
from ..plans.ask import prices_on
from ..plans.options import MEASURED, Option, Prices
from ..plans.parts import Part
from ..plans.training import Training
from ..policy import LEAST_MARGIN
from ..units import format_ms

# what compiles at its first call: a compiler's user compiles the model, not layer by layer
COMPILED = ("torch_compile", "torch_compile_recompute")


class DeviceTimes:
    """What layers in training take of a GPU's time, from measurements; nothing on other devices.

    Raises the errors of the database.
    """

    def __init__(self, layers: Sequence[Layer], device: str, database: Any) -> None:
        self._prices = prices_on(device, Training(), database)
        self._options: dict[Problem, list[Option]] = {}
        if self._prices.device.kind == "cuda":
            for problem in {layer.problem for layer in layers if layer.problem["mode"] == "training"}:
                self._options[problem] = _options(self._prices, problem)
        self._busy = self._is_busy(layers)

    def faster(self, problem: Problem) -> tuple[str, str] | None:
        """The implementation that the device takes less time for than for the framework's own, by more than
        noise, and why, in words; None where there is none, or the host is what a step waits for.
        """
        options = self._options.get(problem, [])
        default = next((one for one in options if one.default), None)
        if default is None or not self._busy:
            return None
        best = min(options, key=lambda one: one.device_ms)
        if best.device_ms * (1 + LEAST_MARGIN) >= default.device_ms:
            return None
        times = (
            f"{format_ms(best.device_ms)} of the device's time, {format_ms(default.device_ms)} by torch's own"
        )
        return best.implementation, f"{times}, {best.source}"

    def ms(self, problem: Problem, name: str | None = None) -> float | None:
        """The device's time for a problem by the fastest implementation, or by one; None where unknown."""
        if not self._busy:
            return None
        if problem not in self._options:
            self._options[problem] = _options(self._prices, problem)
        times = [one.device_ms for one in self._options[problem] if name in (None, one.implementation)]
        return min(times, default=None)

    def _is_busy(self, layers: Sequence[Layer]) -> bool:
        """Whether all layers keep the device longer than launching them takes, by the slower to launch."""
        device_ms = host_ms = 0.0
        for layer in layers:
            options = self._options.get(layer.problem)
            if options:
                best = min(options, key=lambda one: one.device_ms)
                device_ms += layer.calls * best.device_ms
                host_ms += layer.calls * max(one.host_ms for one in options if one.default or one is best)
        return device_ms > host_ms


def _options(prices: Prices, problem: Problem) -> list[Option]:
    """What was measured of a problem's implementations, or of others at sizes or shares like its own."""
    try:
        found = prices.options(Part(name="", problem=problem, count=1, output_bytes=0))
    except SelectorError:
        return []
    known = [one for one in found if one.implementation not in COMPILED and one.source != "counted"]
    return known if any(one.source in MEASURED for one in known) else []
