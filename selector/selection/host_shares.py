"""The host's share of measured times: what launching an implementation takes, however little it computes."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING

from kernel_selector.kernels import registry

if TYPE_CHECKING:
    from .evidence import Evidence


class HostShares:
    """The host's milliseconds a call of each implementation, by mode and number of launches.

    A launched call takes as long as the device or the host, whichever is longer (on an H200 a rectifier takes
    70 us where its CUDA graph takes 12 to 60, and 456 us where that takes 454). So the host takes no longer
    than the least that was measured with as many launches or more, and where small problems were measured, no
    less either.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._least: dict[tuple[str, str], tuple[list[float], list[float]]] = {}

    def ms(self, name: str, mode: str, launches: float) -> float:
        """Milliseconds of the host; 0 where nothing was measured with as many launches."""
        if not self._least:
            self._least = self._counted()
        counts, least = self._least.get((name, mode), ([], []))
        place = bisect_left(counts, launches)
        return least[place] if place < len(counts) else 0.0

    def _counted(self) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
        """Numbers of launches that were measured, rising, and the least time with as many or more."""
        times: dict[tuple[str, str], dict[float, float]] = defaultdict(dict)
        evidence = self._evidence
        for problem in evidence.problems.values():
            known, mode = registry.implementations(problem.operator), problem["mode"]
            for group in evidence.measured_at(problem).values():
                for name, measured in group.items():
                    if measured.estimate is not None and name in known:
                        launches, found = known[name].work(problem).launches, times[name, mode]
                        time_ms = measured.estimate.time_ms
                        found[launches] = min(time_ms, found.get(launches, time_ms))
        return {key: _rising(found) for key, found in times.items()}


def _rising(times: dict[float, float]) -> tuple[list[float], list[float]]:
    counts = sorted(times)
    least = [times[count] for count in counts]
    for place in range(len(least) - 2, -1, -1):
        least[place] = min(least[place], least[place + 1])
    return counts, least
