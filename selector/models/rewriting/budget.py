"""Time budget of a search, and its progress."""

from __future__ import annotations

import time
from collections.abc import Callable

from kernel_selector.kernels.contract.errors import shorten
from kernel_selector.kernels.measure.sweeps import InvalidDuration, parse_seconds

from ...errors import InvalidRequest

SECONDS = 60.0  # for all that a search tries

Progress = Callable[[str, int, int], None]


class Budget:
    """Seconds that a search may take, from now on; what is running when they are over is not stopped."""

    def __init__(self, seconds: float = SECONDS, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds, self.clock = seconds, clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left, 0 when they are over."""
        return max(0.0, self._end - self.clock())


def budget_seconds(budget: object) -> float:
    """Seconds of a budget that is a number or text such as "90s" or "10m".

    Raises InvalidRequest for zero, negative numbers and all else.
    """
    if isinstance(budget, (int, float)) and not isinstance(budget, bool) and 0 < budget < float("inf"):
        return float(budget)
    if isinstance(budget, str):
        try:
            return parse_seconds(budget)
        except InvalidDuration:
            pass
    raise InvalidRequest(
        f"budget={shorten(budget)}: expected a time above 0, in seconds or as text such as '90s' or '10m'."
    )
