"""The judge of what is carried over to a device that nothing was measured on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.selection import transfer
from kernel_selector.db import Database
from kernel_selector.db import records as stored
from kernel_selector.kernels.contract import Record, Status
from tests.selector import replay

MEASURED = replay.recorded(device_kind="cuda")


def alike(record: Record) -> Record:
    """The record as of a GPU that is the same but for its name."""
    return replace(record, device=replace(record.device, name="Another GPU"))


def run(folder: Path, sweep: list[Record]) -> dict[str, dict[str, float]]:
    """What the command writes of a sweep, for a database of the recorded measurements."""
    path, file = folder / "measurements.sqlite", folder / "sweep.jsonl"
    with Database.open(path, create=True) as database, database.write() as connection:
        stored.add(connection, MEASURED)
    file.write_text("\n".join(one.to_json() for one in sweep))
    transfer.main([str(file), "--database", str(path), "--results", str(folder)])
    (written,) = folder.glob("transfer_*.json")
    found: dict[str, dict[str, float]] = json.loads(written.read_text())
    return found


def test_a_device_that_is_the_same_is_foretold_without_errors(tmp_path: Path) -> None:
    found = run(tmp_path, [alike(one) for one in MEASURED if one.status is Status.OK])
    assert found["all"]["gmean"] <= 1.01
    assert found["times"]["median_error"] < 1e-9
    assert found["times"]["in_their_intervals"] == 1.0
    assert found["source"].keys() == {"transfer"}


def test_a_device_that_was_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is in the database"):
        run(tmp_path, MEASURED)
