"""Which implementation wins where: the fastest at each measured problem, mapped over two hyperparameters."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
_CONTESTS: WeakKeyDictionary[Evidence, Contests] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True, slots=True)
class Contest:
    """A problem at which several implementations were measured under the same circumstances.

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

    x: Axis
    y: Axis
    cells: Mapping[tuple[str, str], Cell]
    ranking: tuple[tuple[str, int], ...]  # how many problems each implementation wins, the most first
    problems: int
    earlier: int  # of them, those that were measured with earlier versions alone


class Axis:
    """The values of a hyperparameter as labels: one by one when they are few, else by powers of two."""

    def __init__(self, name: str, values: Iterable[Value]) -> None:
        self.name = name
        distinct = sorted(set(values), key=lambda value: (isinstance(value, str), value))
        numbers = all(isinstance(value, int | float) for value in distinct)
        self._binned = numbers and len(distinct) > MOST_VALUES
        self.labels = tuple(dict.fromkeys(map(self.label, distinct)))

    def label(self, value: Value) -> str:
        """Where a value belongs: itself, or `256 to 511`."""
        if not self._binned:
            return str(value).lower() if isinstance(value, bool) else str(value)
        if not value:
            return "0"
        assert not isinstance(value, str)
        low = 2.0 ** math.floor(math.log2(value))
        if isinstance(value, float):
            return f"{low:g} to {2 * low:g}"
        return f"{low:.0f} to {2 * low - 1:.0f}" if low > 1 else "1"


class Contests:
    """All problems of an operator on a kind of device with a winner among at least two implementations.

    `axes` has the values of each hyperparameter there. `alone` counts the problems at which one
    implementation alone was measured.
    """

    def __init__(self, evidence: Evidence, operator: Operator) -> None:
        made = [_contest(evidence, problem, operator.default) for problem in evidence.problems.values()]
        self.found = tuple(contest for contest in made if contest is not None)
        self.alone = len(made) - len(self.found)
        self.axes = {
            spec.name: Axis(spec.name, (contest.problem[spec.name] for contest in self.found))
            for spec in operator.hyperparameters
        }

    @classmethod
    def of(cls, evidence: Evidence, operator: Operator) -> Contests:
        """Those of an operator's evidence; made once."""
        if evidence not in _CONTESTS:
            _CONTESTS[evidence] = cls(evidence, operator)
        return _CONTESTS[evidence]

    def map(self, x: str, y: str, only: Mapping[str, str]) -> WinnerMap:
        """The map of the contests whose hyperparameters have the labels of `only`.

        Raises InvalidRequest for a name or a label that is not there.
        """
        self._require(x, y, only)
        chosen = [
            contest
            for contest in self.found
            if all(self.axes[name].label(contest.problem[name]) == label for name, label in only.items())
        ]
        across, down = (Axis(name, (contest.problem[name] for contest in chosen)) for name in (x, y))
        places: dict[tuple[str, str], list[Contest]] = defaultdict(list)
        for contest in chosen:
            places[down.label(contest.problem[y]), across.label(contest.problem[x])].append(contest)
        return WinnerMap(
            x=across,
            y=down,
            cells={place: _cell(there) for place, there in places.items()},
            ranking=_ranking(chosen),
            problems=len(chosen),
            earlier=sum(1 for contest in chosen if not contest.current),
        )

    def _require(self, x: str, y: str, only: Mapping[str, str]) -> None:
        for argument, name in (("x", x), ("y", y), *(("only", name) for name in only)):
            if name not in self.axes:
                raise InvalidRequest(
                    f"{argument}={shorten(name)}: expected a hyperparameter. {suggest(name, self.axes)}"
                )
        for name, label in only.items():
            if label not in self.axes[name].labels:
                raise InvalidRequest(
                    f"{name}={shorten(label)}: expected a value that was measured. "
                    f"{suggest(label, self.axes[name].labels)}"
                )
        if x == y:
            raise InvalidRequest(f"x={x} and y={y}: expected two different hyperparameters.")


def _contest(evidence: Evidence, problem: Problem, default: str) -> Contest | None:
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
            return Contest(problem=problem, winner=winner, speedup=speedup, current=current)
    return None


def _cell(there: Sequence[Contest]) -> Cell:
    winner, wins = _ranking(there)[0]
    logs = [math.log(contest.speedup) for contest in there if contest.speedup is not None]
    speedup = math.exp(fmean(logs)) if logs else None
    return Cell(winner=winner, wins=wins, problems=len(there), speedup=speedup)


def _ranking(found: Iterable[Contest]) -> tuple[tuple[str, int], ...]:
    wins = Counter(contest.winner for contest in found)
    return tuple(sorted(wins.items(), key=lambda item: (-item[1], item[0])))
