"""Figures of a comparison, from the times and bytes that were stored: of a cell, and of a row of cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common.peers import is_peer
from benchmarks.common.rows import Row, problems
from kernel_selector.kernels import registry

StoredCell = Mapping[str, Any]  # as `store` keeps it
Best = tuple[float, str]  # milliseconds, and whose
Side = str | None | Callable[[str], bool]  # `ours`, `users`, `all`, `default`, one name, or whom to take


@dataclass(frozen=True)
class Judged:
    """A cell, and which of its implementations users have without us.

    `form` is `launched` by the host, `replayed` as a CUDA graph, or `either`, each of all that a problem is
    judged by; or the `forward` pass alone, in either way. What an implementation that replays a graph itself
    takes to be called is a time of graphs, never one of launches. `measure` is what is `held` for backward,
    or the `peak`. Where a side has no time, or no bytes, there is no figure: None.
    """

    cell: StoredCell
    of_users: Callable[[str], bool]

    def best(self, side: Side, form: str = "either") -> Best | None:
        """The fastest of a side, of the implementations that there are still."""
        wanted = self._wanted(side)
        operator = self.cell["problem"]["operator"]
        times = [
            (candidate["times"][kind]["p50_ms"], name)
            for name, candidate in self.cell["candidates"].items()
            if wanted(name) and not registry.retirement(operator, name)
            for kind in self._kinds(form, name)
            if kind in candidate["times"]
        ]
        return min(times, default=None)

    def ms(self, side: Side, form: str = "either") -> float | None:
        """The time of a side's fastest."""
        best = self.best(side, form)
        return best and best[0]

    def fastest(self, side: Side) -> str | None:
        """The name of a side's fastest."""
        best = self.best(side)
        return best and best[1]

    def over(self, slow: Side, fast: Side, form: str = "either") -> float | None:
        """The first side's time over the second's."""
        return quotient(self.ms(slow, form), self.ms(fast, form))

    def share(self, amount: str, rate: str, side: Side) -> float | None:
        """Rate of a side's fastest, the cell's `amount` per second, over the cell's `rate`."""
        ms = self.ms(side)
        return quotient(self.cell[amount] / (ms / 1e3), self.cell[rate]) if ms else None

    def sides(self) -> dict[str, Any]:
        """Times of the sides in milliseconds, and the names of their fastest."""
        return {
            "ms": self.ms("ours"),
            "users_ms": self.ms("users"),
            "default_ms": self.ms("default"),
            "winner": self.fastest("ours"),
            "peer": self.fastest("users"),
            "fastest": self.fastest("all"),
        }

    def memory(self, name: str | None, measure: str) -> int | None:
        """The bytes of an implementation."""
        return self.cell["candidates"].get(name, {}).get("memory", {}).get(f"{measure}_bytes") or None

    def saved(self, name: str | None, measure: str) -> float | None:
        """The default's bytes over those of an implementation."""
        return quotient(self.memory(self.cell["default"], measure), self.memory(name, measure))

    def thriftiest(self, side: Side, measure: str) -> str | None:
        """The name of a side's implementation with the fewest bytes."""
        wanted = self._wanted(side)
        found = [(self.memory(name, measure), name) for name in self.cell["candidates"] if wanted(name)]
        return min(((size, name) for size, name in found if size), default=(None, None))[1]

    def _wanted(self, side: Side) -> Callable[[str], bool]:
        if callable(side):
            return side
        only = self.cell["default"] if side == "default" else side
        sides: Mapping[str | None, Callable[[str], bool]] = {
            "all": lambda _: True,
            "ours": lambda name: not self.of_users(name),
            "users": self.of_users,
        }
        return sides.get(side, lambda name: name == only)

    def _kinds(self, form: str, name: str) -> tuple[str, ...]:
        total = "forward_backward" if self.cell["problem"]["mode"] == "training" else "forward"
        called = (total,)
        kinds = {
            "launched": () if replays(name) else called,
            "replayed": (f"graph_{total}", *(called if replays(name) else ())),
            "either": (total, f"graph_{total}"),
            "forward": ("forward", "graph_forward"),
        }
        return kinds[form]


def replays(name: str) -> bool:
    """Whether an implementation replays a CUDA graph of its own when it is called."""
    return name.endswith(("_graph", "_reduce_overhead"))


def quotient(above: float | None, below: float | None) -> float | None:
    """One figure over another, where there are both."""
    return above / below if above and below else None


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Geometric mean of the values that are not None."""
    logarithms = [math.log(value) for value in values if value is not None]
    return rounded(math.exp(sum(logarithms) / len(logarithms))) if logarithms else None


def rounded(value: float) -> float:
    """Four significant digits: more than the spread of any measurement allows."""
    return float(f"{value:.4g}")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of a comparison's cells and rows.

    `of_users(name)` says whether users have an implementation without us; `table` gives a cell's figures by
    name; `always` are figures that each row shows beside what its goals name.
    """

    of_users: Callable[[str], bool]
    table: Callable[[Judged], dict[str, Any]]
    always: tuple[str, ...]

    def of_cell(self, cell: StoredCell) -> dict[str, Any]:
        """All figures that a cell has, rounded."""
        return {
            name: rounded(value) if isinstance(value, int | float) else value
            for name, value in self.table(Judged(cell, self.of_users)).items()
            if value is not None
        }

    def of_row(self, row: Row, cells: Mapping[str, StoredCell]) -> dict[str, Any]:
        """A row's line, of those of its problems that are among the cells, by key."""
        keys = [problem.key for problem in problems(row)]
        return self.of_cells(row, [cells[key] for key in keys if key in cells])

    def of_cells(self, row: Row, present: Sequence[StoredCell]) -> dict[str, Any]:
        """A row's line, of cells: geometric means, the worst one by the figure `best`, verdicts of goals."""
        if row.peers:
            present = [cell for cell in present if any(map(is_peer, cell["candidates"]))]
        rated = [(cell["figures"]["best"], cell) for cell in present if "best" in cell["figures"]]
        names = dict.fromkeys((*self.always, *(goal.figure for goal in row.goals)))
        found = {name: geometric_mean(cell["figures"].get(name) for cell in present) for name in names}
        line: dict[str, Any] = {
            "name": row.name,
            "title": row.title,
            "cells": len(row.cases),
            "measured": len(present),
            "without_a_figure": [cell["key"] for cell in present if "best" not in cell["figures"]],
        }
        if rated:
            least, cell = min(rated, key=lambda one: one[0])
            found["worst"] = least
            line["worst_cell"] = {
                "key": cell["key"],
                **{name: cell["figures"][name] for name in ("winner", "peer")},
            }
            if "limit_us" in cell:
                line["worst_cell"]["binds"] = cell["limit_us"] and _binding(cell["limit_us"])
        line["figures"] = {name: value for name, value in found.items() if value is not None}
        line["goals"] = [
            {
                "figure": goal.figure,
                "least": goal.least,
                "aim": goal.aim,
                "value": found.get(goal.figure),
                "verdict": goal.verdict(found.get(goal.figure)),
            }
            for goal in row.goals
        ]
        return line


def _binding(limit: Mapping[str, float]) -> str:
    """The largest part of the physical limit."""
    return max((name for name in limit if name != "total"), key=lambda name: limit[name])
