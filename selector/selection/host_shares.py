"""The host's share of measured times: what launching an implementation takes, however little it computes."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem


class HostShares:
    """The host's milliseconds a call of each implementation, by mode and number of launches.

    A launched call takes as long as the device or the host, whichever is longer (on an H200 a rectifier takes
    70 us where its CUDA graph takes 12 to 60, and 456 us where that takes 454). So the host takes no longer
    than the least that was measured with as many launches or more, and where small problems were measured, no
    less either.
    """

    def __init__(self, times: Iterable[tuple[Problem, str, float]]) -> None:
        """`times` are milliseconds of good measurements, with their problem and implementation."""
        found: dict[tuple[str, str], dict[float, float]] = defaultdict(dict)
        for problem, name, time_ms in times:
            known = registry.implementations(problem.operator)
            if name in known:
                launches, least = known[name].work(problem).launches, found[name, problem["mode"]]
                least[launches] = min(time_ms, least.get(launches, time_ms))
        self._least = {key: _rising(each) for key, each in found.items()}

    def ms(self, name: str, mode: str, launches: float) -> float:
        """Milliseconds of the host; 0 where nothing was measured with as many launches."""
        counts, least = self._least.get((name, mode), ([], []))
        place = bisect_left(counts, launches)
        return least[place] if place < len(counts) else 0.0


def _rising(times: dict[float, float]) -> tuple[list[float], list[float]]:
    """Numbers of launches that were measured, rising, and the least time with as many or more."""
    counts = sorted(times)
    least = [times[count] for count in counts]
    for place in range(len(least) - 2, -1, -1):
        least[place] = min(least[place], least[place + 1])
    return counts, least
