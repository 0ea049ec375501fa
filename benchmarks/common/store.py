"""The cells that are measured so far, in one result file that is rewritten after each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common.figures import Figures
from benchmarks.common.result import read_result, write_result
from benchmarks.common.rows import Cell, Row, problems
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, Record
from kernel_selector.kernels.measure import Session
from kernel_selector.kernels.versions import holds

RAW_SAMPLES = 10  # kept of each timing: percentiles are of all
TIMES = ("forward", "forward_backward", "graph_forward", "graph_forward_backward")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Contents of a comparison's file: what it says of its cells and rows.

    `method` says in words how times were taken; `more(problem, session)` is what a cell holds beside its
    candidates; `figures` are those of its cells and rows.
    """

    method: tuple[str, ...]
    rows: tuple[Row, ...]
    more: Callable[[Problem, Session], dict[str, Any]]
    figures: Figures


class Store:
    """Finished cells by their problem's key, and the runs that they are from.

    A cell names its run; a run names its commit, device, software, seed and the version of each
    implementation, so that a file may hold cells of several runs.
    """

    def __init__(self, folder: Path, name: str, kind: Kind, *, rows: Sequence[Row] | None = None) -> None:
        self.folder, self.name = folder, name
        self._kind = kind
        self.runs: list[dict[str, Any]] = []
        self.cells: dict[str, dict[str, Any]] = {}
        self._rows = kind.rows if rows is None else rows

    def load(self, files: Iterable[Path], commit: str | None = None) -> None:
        """Take over the cells of other files, of one commit or (None) of any; of two of a problem the newer.

        Raises BadResult for a file that is none of a comparison.
        """
        for file in files:
            result = read_result(file, needs=("runs", "records"))
            first = len(self.runs)
            self.runs += result["runs"]
            for cell in result["records"]:
                if commit is not None and result["runs"][cell["run"]]["commit"] != commit:
                    continue
                known = self.cells.get(cell["key"])
                if known is None or known["measured_at"] < cell["measured_at"]:
                    figures = self._kind.figures.of_cell(cell)  # anew: a candidate may be gone since
                    self.cells[cell["key"]] = {**cell, "run": first + cell["run"], "figures": figures}
        used = sorted({cell["run"] for cell in self.cells.values()})
        self.runs = [self.runs[run] for run in used]
        for cell in self.cells.values():
            cell["run"] = used.index(cell["run"])

    def start(self, session: Session, cells: Sequence[Cell], commit: str) -> None:
        """A run that the next cells are from."""
        names = {(cell.problem.operator, name) for cell in cells for name in cell.implementations}
        versions = {
            f"{one}.{name}": registry.implementation(one, name).version for one, name in sorted(names)
        }
        run = {
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit,
            "seed": session.seed,
            "device": session.device.to_dict(),
            "environment": session.environment.to_dict(),
            "versions": versions,
            "seconds": 0.0,
        }
        self._began = time.monotonic()
        self.runs.append(run)

    def holds(self, cell: Cell) -> bool:
        """Whether the cell is there, of the implementations as they are now."""
        known = self.cells.get(cell.problem.key)
        if known is None:
            return False
        operator, versions = cell.problem.operator, self.runs[known["run"]]["versions"]
        return all(
            name in known["candidates"]
            and holds(
                operator,
                name,
                versions.get(f"{operator}.{name}", ""),
                registry.implementation(operator, name).version,
            )
            for name in cell.implementations
        )

    def add(self, problem: Problem, records: Sequence[Record], session: Session) -> dict[str, Any]:
        """Store a cell that was measured just now, and write the file."""
        cell: dict[str, Any] = {
            "key": problem.key,
            "problem": {"operator": problem.operator, **problem.as_dict},
            "run": len(self.runs) - 1,
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "policy": session.policy.name,
            "default": registry.operator(problem.operator).default,
            **self._kind.more(problem, session),
            "candidates": {record.implementation: stored_candidate(record) for record in records},
        }
        cell["figures"] = self._kind.figures.of_cell(cell)
        self.cells[problem.key] = cell
        self.runs[-1]["seconds"] = round(time.monotonic() - self._began, 1)
        self.write()
        return cell

    def lines(self) -> list[str]:
        """Each cell as JSON, with the names of the rows that it is in."""
        rows: dict[str, list[str]] = {key: [] for key in self.cells}
        for row in self._rows:
            for problem in problems(row):
                rows.get(problem.key, []).append(row.name)
        return [json.dumps({**cell, "rows": rows[key]}, allow_nan=False) for key, cell in self.cells.items()]

    def summaries(self) -> list[dict[str, Any]]:
        """One line a row of which anything is measured."""
        lines = (self._kind.figures.of_row(row, self.cells) for row in self._rows)
        return [line for line in lines if line["measured"]]

    def write(self) -> Path:
        """The result file, of the newest run's circumstances."""
        run = max(self.runs, key=lambda one: one["started_at"])
        return write_result(
            self.name,
            {
                "measured_at": run["started_at"],
                "device": run["device"]["name"],
                "environment": run["environment"],
                "method": self._kind.method,
                "rows": self.summaries(),
                "runs": self.runs,
            },
            commit=run["commit"],
            lines=self.lines(),
            folder=self.folder,
        )


def stored_candidate(record: Record) -> dict[str, Any]:
    """Outcome of a candidate as it is stored: the gate's error ratio and times, or why it has none."""
    found: dict[str, Any] = {"status": record.status.value, "times": {}}
    if record.reason:
        found["reason"] = record.reason
    if record.gate.worst_error_ratio is not None:
        found["error_ratio"] = round(record.gate.worst_error_ratio, 3)
        if note := record.gate.detail.partition("; ")[2]:
            found["gate"] = note
    if record.memory is not None:
        found["memory"] = asdict(record.memory)
    for name in TIMES:
        if (timing := getattr(record, name)) is not None:
            raw = timing.raw_ms[:: -(-len(timing.raw_ms) // RAW_SAMPLES)]
            found["times"][name] = {**asdict(timing), "raw_ms": list(raw)}
    return found
