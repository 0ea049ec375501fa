"""The domain of a cost model: the hyperparameters it has seen by device, outside of which it knows less."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kernel_selector.kernels.contract import Device, Integer, Operator, Problem, Record

from .features.work import least_work

# doublings by which a size may lie outside of what was seen, and the operations in all, which are bounded too
# because sizes that were seen one by one may be large together
SIZE_SLACK, WORK_SLACK = 0.5, 1.0


class Beyond(NamedTuple):
    """The distance of a problem's farthest size from what was seen: in `doublings`, and in words."""

    doublings: float
    words: str


@dataclass(frozen=True)
class Domain:
    """Seen hyperparameters by device key: `words` of choices, `log2` ranges of sizes and of `operations`."""

    devices: Mapping[str, Mapping[str, Any]]  # JSON-ready

    @classmethod
    def of(cls, operator: Operator, records: Iterable[Record]) -> Domain:
        """The domain of a model that learns from these records."""
        problems: dict[str, dict[str, Problem]] = defaultdict(dict)
        for record in records:
            problems[record.device.key][record.problem.key] = record.problem
        return cls({key: _seen(operator, list(found.values())) for key, found in sorted(problems.items())})

    def unseen(self, device: Device) -> str | None:
        """Why every problem on a device is outside, or None when some may be inside."""
        if device.key in self.devices:
            return None
        return f"the cost model has not seen {device.name} (it knows {', '.join(self.devices)})"

    def outside(self, problem: Problem, device: Device) -> str | None:
        """Why nothing can be said of a problem on a device, or None when something can."""
        unseen = self.unseen(device)
        if unseen:
            return unseen
        for name, values in self.devices[device.key]["words"].items():
            if problem[name] not in values:
                words = " or ".join(map(str, values))
                return f"the cost model has not seen {name}={problem[name]}, only {words}"
        return None

    def beyond(self, problem: Problem, device: Device) -> Beyond | None:
        """How far a problem's sizes are outside of those seen on a device, or None when they are inside."""
        farthest: Beyond | None = None
        for name, (low, high) in self.devices[device.key]["log2"].items():
            value = _work(problem) if name == "operations" else problem[name]
            size = math.log2(max(value, 1))
            doublings = max(low - size, size - high)
            if doublings > max(_slack(name), farthest.doublings if farthest else 0.0):
                words = (
                    f"{name}={value:.4g} is outside what the cost model has seen on {device.name}, "
                    f"{2**low:.4g} to {2**high:.4g}"
                )
                farthest = Beyond(doublings, words)
        return farthest


def _slack(name: str) -> float:
    return WORK_SLACK if name == "operations" else SIZE_SLACK


def _seen(operator: Operator, problems: list[Problem]) -> dict[str, Any]:
    sizes = {spec.name for spec in operator.hyperparameters if isinstance(spec, Integer)}
    columns = {spec.name: [problem[spec.name] for problem in problems] for spec in operator.hyperparameters}
    logarithmic = {name: values for name, values in columns.items() if name in sizes}
    logarithmic["operations"] = [_work(problem) for problem in problems]
    return {
        "words": {name: sorted(set(values)) for name, values in columns.items() if name not in sizes},
        "log2": {
            name: [math.log2(max(edge(values), 1)) for edge in (min, max)]
            for name, values in logarithmic.items()
        },
    }


def _work(problem: Problem) -> float:
    return least_work(problem).flops
