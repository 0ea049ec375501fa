"""The domain of a cost model: the hyperparameters it has seen by device, outside of which it knows less."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import (
    Device,
    Integer,
    InvalidHyperparameter,
    Operator,
    Problem,
    Record,
)

from .estimate import LEAST_GAIN
from .features.work import least_work

# doublings by which a size may lie outside of what was seen, and the operations in all, which are bounded too
# because sizes that were seen one by one may be large together
SIZE_SLACK, WORK_SLACK = 0.5, 1.0
MOST_DOUBLINGS = 128.0  # of any size or count of operations
UNSEEN_WORD = 0.5  # doublings of a size that a word which was never seen counts for
# doublings more for a dtype of another width. Of 2,398 pairs of one implementation's times in float32 and in
# a dtype of 16 bits, on an H200 and an H100, 90 % are within 1.8 doublings of the ratio of counted work, and
# of 1,737 in float16 and bfloat16 within 0.3. Choices by the times in the other width lose 10 to 13 % against
# the fastest where a switch must gain a quarter, the default 16 to 41 %; by those of the same width 1 to 2 %
UNSEEN_WIDTH, LEAST_GAIN_OF_WIDTH = 4.0, 0.25


class Beyond(NamedTuple):
    """The distance of a problem's farthest size from what was seen: in `doublings`, and in words.

    `least_gain` is that of a switch away from the default so far outside.
    """

    doublings: float
    words: str
    least_gain: float = LEAST_GAIN


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

    @classmethod
    def from_dict(cls, devices: Mapping[str, Any], operator: Operator) -> Domain:
        """The domain of a manifest. Raises LookupError, TypeError or ValueError for what is none."""
        specs = {spec.name: spec for spec in operator.hyperparameters}
        sizes = {name for name, spec in specs.items() if isinstance(spec, Integer)}
        for seen in devices.values():
            for name, values in seen["words"].items():
                for value in values:
                    specs[name].parse(value)
            for name, (low, high) in seen["log2"].items():
                if name not in sizes | {"operations"} or not -1 <= low <= high <= MOST_DOUBLINGS:
                    raise ValueError(f"a range of {name} from {low} to {high}")
        return cls(devices)

    def unseen(self, device: Device) -> str | None:
        """Reason why every problem on a device is outside, or None when some may be inside."""
        if device.key in self.devices:
            return None
        return f"the cost model has not seen {device.name} (it knows {', '.join(self.devices)})"

    def outside(self, problem: Problem, device: Device) -> str | None:
        """Reason why nothing can be said of a problem on a device, or None when something can."""
        unseen = self.unseen(device)
        if unseen:
            return unseen
        for name, values in self.devices[device.key]["words"].items():
            if problem[name] not in values:
                words = " or ".join(map(str, values))
                return f"the cost model has not seen {name}={problem[name]}, only {words}"
        return None

    def seen_alike(self, problem: Problem, device: Device) -> Problem:
        """The problem with words that were seen on a device in place of those that were not."""
        return seen_alike(problem, self.devices.get(device.key, {}).get("words", {}))

    def beyond(self, problem: Problem, device: Device) -> Beyond | None:
        """Distance of a problem's sizes from those seen on a device, or None when they are inside."""
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


def words_of(problems: Sequence[Problem]) -> dict[str, list[Any]]:
    """The values of each hyperparameter of problems of one operator that is no size."""
    if not problems:
        return {}
    specs = registry.operator(problems[0].operator).hyperparameters
    return {
        spec.name: sorted({problem[spec.name] for problem in problems})
        for spec in specs
        if not isinstance(spec, Integer)
    }


def seen_alike(problem: Problem, words: Mapping[str, Sequence[Any]]) -> Problem:
    """The problem with the nearest of the words that were seen in place of those that were not.

    Sizes stay, and so does the mode: inference is another computation than training.
    """
    alike = problem
    for name, seen in words.items():
        if name != "mode" and problem[name] not in seen:
            alike = _with_nearest(alike, name, seen)
    return alike


def unlike(problem: Problem, alike: Problem) -> float:
    """Doublings that the values count for in which a problem like another one differs from it."""
    unseen = differences(problem, alike)
    wide = bool(unseen) and is_of_another_width(problem, alike)
    return UNSEEN_WORD * len(unseen) + UNSEEN_WIDTH * wide


def is_of_another_width(problem: Problem, other: Problem) -> bool:
    """Whether the elements of two problems of one operator have unlike numbers of bits."""
    return bits_of(problem["dtype"]) != bits_of(other["dtype"])


def bits_of(dtype: str) -> int:
    """Bits of an element, by the dtype's name."""
    return 16 if dtype == "bfloat16" else int(dtype.removeprefix("float"))


def differences(problem: Problem, alike: Problem) -> list[str]:
    """The values in which a problem like another one differs from it, in words; implied ones count too."""
    names = dict.fromkeys((*problem.as_dict, *alike.as_dict))
    return [
        f"{name}={alike[name]} instead of {problem[name]}" for name in names if alike[name] != problem[name]
    ]


def _with_nearest(problem: Problem, name: str, seen: Sequence[Any]) -> Problem:
    """The problem with the seen word that changes its work least, the nearest number of several; or as it is.

    A number that is not zero stands for another one before zero does.
    """
    given, work = problem[name], least_work(problem).moved_bytes
    found = {}
    for word in seen:
        try:
            other = registry.operator(problem.operator).problem({**problem.as_dict, name: word})
        except InvalidHyperparameter:
            continue
        number = 0.0 if isinstance(word, str) else abs(word - given)
        found[(not word) != (not given), abs(least_work(other).moved_bytes - work), number, word] = other
    return found[min(found)] if found else problem


def _slack(name: str) -> float:
    return WORK_SLACK if name == "operations" else SIZE_SLACK


def _seen(operator: Operator, problems: list[Problem]) -> dict[str, Any]:
    sizes = [spec.name for spec in operator.hyperparameters if isinstance(spec, Integer)]
    logarithmic = {name: [problem[name] for problem in problems] for name in sizes}
    logarithmic["operations"] = [_work(problem) for problem in problems]
    return {
        "words": words_of(problems),
        "log2": {
            name: [math.log2(max(edge(values), 1)) for edge in (min, max)]
            for name, values in logarithmic.items()
        },
    }


def _work(problem: Problem) -> float:
    return least_work(problem).flops
