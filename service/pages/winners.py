"""Map of the fastest implementations of an operator over two hyperparameters."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from kernel_selector.kernels.contract import Operator, Problem
from kernel_selector.kernels.contract.errors import shorten, suggest
from selector.errors import InvalidRequest

if TYPE_CHECKING:
    from selector.cost_model.estimate import Estimate
    from selector.selection.evidence import Evidence

Value = int | float | bool | str
MOST_VALUES = 12  # of one hyperparameter that are shown one by one
_COMPARED: WeakKeyDictionary[Evidence, ComparedProblems] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedProblem:
    """Problem with several implementations measured under the same circumstances.

    `speedup` is the default's time over the winner's, None where the default was not measured. `current`
    is False when the times are of earlier versions.
    """

    problem: Problem
    winner: str
    speedup: float | None
    current: bool


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The problems at one place of a map: who wins most of them, and by how much the winners win."""

    winner: str
    wins: int
    problems: int
    speedup: float | None  # geometric mean of the default's time over that of each problem's winner


@dataclass(frozen=True, kw_only=True)
class WinnerMap:
    """Winners over two hyperparameters; `cells` by the labels of row (y) and column (x)."""

    x: MapAxis
    y: MapAxis
    cells: Mapping[tuple[str, str], Cell]
    ranking: tuple[tuple[str, int], ...]  # how many problems each implementation wins, the most first
    problems: int
    earlier: int  # of them, those that were measured with earlier versions alone


class MapAxis:
    """The values of a hyperparameter as labels: one by one when they are few, else by powers of two."""

    def __init__(self, name: str, values: Iterable[Value]) -> None:
        self.name = name
        distinct = sorted(set(values), key=lambda value: (isinstance(value, str), value))
        numbers = all(isinstance(value, int | float) for value in distinct)
        self._binned = numbers and len(distinct) > MOST_VALUES
        self.labels = tuple(dict.fromkeys(map(self.label, distinct)))

    def label(self, value: Value) -> str:
        """Label of a value on the axis: itself, or a range such as `256 to 511`."""
        if not self._binned:
            return str(value).lower() if isinstance(value, bool) else str(value)
        if not value:
            return "0"
        assert not isinstance(value, str)
        low = 2.0 ** math.floor(math.log2(value))
        if isinstance(value, float):
            return f"{low:g} to {2 * low:g}"
        return f"{low:.0f} to {2 * low - 1:.0f}" if low > 1 else "1"


class ComparedProblems:
    """All problems of an operator on a kind of device with a winner among at least two implementations.

    `axes` has the values of each hyperparameter there. `alone` counts the problems at which one
    implementation alone was measured.
    """

    def __init__(self, evidence: Evidence, operator: Operator) -> None:
        made = [_compared(evidence, problem, operator.default) for problem in evidence.problems.values()]
        self.found = tuple(one for one in made if one is not None)
        self.alone = len(made) - len(self.found)
        self.axes = {
            spec.name: MapAxis(spec.name, (one.problem[spec.name] for one in self.found))
            for spec in operator.hyperparameters
        }

    @classmethod
    def of(cls, evidence: Evidence, operator: Operator) -> ComparedProblems:
        """Compared problems of an operator's evidence, cached."""
        if evidence not in _COMPARED:
            _COMPARED[evidence] = cls(evidence, operator)
        return _COMPARED[evidence]

    def map(self, x: str, y: str, only: Mapping[str, str]) -> WinnerMap:
        """The map of the compared problems whose hyperparameters have the labels of `only`.

        Raises InvalidRequest for a name or a label that is not there.
        """
        for error in self.refusals(x, y, only):
            raise error
        chosen = [
            one
            for one in self.found
            if all(self.axes[name].label(one.problem[name]) == label for name, label in only.items())
        ]
        across, down = (MapAxis(name, (one.problem[name] for one in chosen)) for name in (x, y))
        places: dict[tuple[str, str], list[ComparedProblem]] = defaultdict(list)
        for one in chosen:
            places[down.label(one.problem[y]), across.label(one.problem[x])].append(one)
        return WinnerMap(
            x=across,
            y=down,
            cells={place: _cell(there) for place, there in places.items()},
            ranking=_ranking(chosen),
            problems=len(chosen),
            earlier=sum(1 for one in chosen if not one.current),
        )

    def refusals(self, x: str, y: str, only: Mapping[str, str]) -> Iterator[InvalidRequest]:
        """Errors of the arguments of a map, each by itself."""
        for argument, name in (("x", x), ("y", y), *(("only", name) for name in only)):
            if name not in self.axes:
                yield InvalidRequest(
                    f"{argument}={shorten(name)}: expected a hyperparameter. {suggest(name, self.axes)}"
                )
        for name, label in only.items():
            if name in self.axes and label not in self.axes[name].labels:
                yield InvalidRequest(
                    f"{name}={shorten(label)}: expected a value that was measured. "
                    f"{suggest(label, self.axes[name].labels)}"
                )
        if x == y:
            yield InvalidRequest(f"x={x} and y={y}: expected two different hyperparameters.")


def _compared(evidence: Evidence, problem: Problem, default: str) -> ComparedProblem | None:
    """The best covered circumstances decide, of equally covered ones the latest."""
    for current in (True, False):
        groups = []
        for group in evidence.groups[problem.key].values():
            good: dict[str, Estimate] = {
                name: measured.estimate
                for name, measured in group.items()
                if measured.estimate and (measured.version == evidence.versions.get(name)) is current
            }
            groups.append((len(good), max(item.measured_at for item in group.values()), good))
        covered, _, estimates = max(groups, key=lambda group: group[:2])
        if covered > 1:
            times = {name: estimate.time_ms for name, estimate in estimates.items()}
            winner = min(times, key=lambda name: times[name])
            speedup = times[default] / times[winner] if default in times else None
            return ComparedProblem(problem=problem, winner=winner, speedup=speedup, current=current)
    return None


def _cell(there: Sequence[ComparedProblem]) -> Cell:
    winner, wins = _ranking(there)[0]
    logs = [math.log(one.speedup) for one in there if one.speedup is not None]
    speedup = math.exp(fmean(logs)) if logs else None
    return Cell(winner=winner, wins=wins, problems=len(there), speedup=speedup)


def _ranking(found: Iterable[ComparedProblem]) -> tuple[tuple[str, int], ...]:
    wins = Counter(one.winner for one in found)
    return tuple(sorted(wins.items(), key=lambda item: (-item[1], item[0])))
