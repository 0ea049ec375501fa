"""The judge of what is carried over to a device that nothing was measured on."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.selection import transfer
from kernel_selector.db import Database
from kernel_selector.db import records as stored
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Record, Status
from tests.selector import replay

LSTM = registry.operator("lstm")
MEASURED = replay.recorded(device_kind="cuda")


def alike(record: Record) -> Record:
    """The record as of a GPU that is the same but for its name."""
    return replace(record, device=replace(record.device, name="Another GPU"))


def run(folder: Path, sweep: list[Record]) -> dict[str, Any]:
    """What the command writes of a sweep, for a database of the recorded measurements."""
    path, file = folder / "measurements.sqlite", folder / "sweep.jsonl"
    with Database.open(path, create=True) as database, database.write() as connection:
        stored.add(connection, MEASURED)
    file.write_text("\n".join(one.to_json() for one in sweep))
    transfer.main([str(file), "--database", str(path), "--results", str(folder)])
    (written,) = folder.glob("transfer_*.json")
    found: dict[str, Any] = json.loads(written.read_text())
    return found


def test_a_device_that_is_the_same_is_foretold_without_errors(tmp_path: Path) -> None:
    found = run(tmp_path, [alike(one) for one in MEASURED if one.status is Status.OK])
    assert found["all"]["gmean"] <= 1.01
    assert found["times"]["median_error"] < 1e-9
    assert found["times"]["in_their_intervals"] == 1.0
    assert found["source"].keys() == {"transfer"}


def test_problems_that_the_other_device_predicts_are_judged_apart(tmp_path: Path) -> None:
    keys = sorted({one.problem.key for one in MEASURED})
    sweep = [alike(one) for one in MEASURED if one.status is Status.OK]
    larger = [
        replace(one, problem=LSTM.problem({**one.problem.as_dict, "batch": one.problem["batch"] + 1}))
        for one in sweep
        if one.problem.key in keys[::2]
    ]
    found = run(tmp_path, [*sweep, *(one for one in larger if one.problem.key not in keys)])
    parts = found["there"]
    assert parts.keys() == {"measured", "predicted"}
    assert sum(one["choices"]["problems"] for one in parts.values()) == found["all"]["problems"]
    assert sum(one["times"]["candidates"] for one in parts.values()) == found["times"]["candidates"]
    assert parts["measured"]["times"]["median_error"] < 1e-9 < parts["predicted"]["times"]["median_error"]


def test_a_device_that_was_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is in the database"):
        run(tmp_path, MEASURED)


SHEET = {
    "device": "",
    "compute_capability": "9.0",
    "multiprocessors": "132",
    "memory_bytes": "85899345920",
    "l2_bytes": "52428800",
    "memory_gb_per_s": "",
    "achieved_gb_per_s": "",
    "bf16_tflops": "",
    "achieved_bf16_tflops": "",
    "fp16_tflops": "",
    "achieved_fp16_tflops": "",
    "fp32_tflops": "",
    "achieved_fp32_tflops": "",
}
LINEAR = {
    "operator": "linear",
    "in_features": "4096",
    "out_features": "4096",
    "bias": "False",
    "dtype": "bfloat16",
    "pass": "forward",
    "implementation": "torch_linear",
    "note": "",
}
TOKENS = (1024, 4096, 16384)


def public(folder: Path, rates: dict[str, float], **odd: str) -> None:
    """Tables of devices that take what their products take, and reach half of their data sheets."""
    sheet = [
        {**SHEET, "device": name, "memory_gb_per_s": str(20 * rate), "achieved_gb_per_s": str(10 * rate)}
        | {"bf16_tflops": str(2 * rate), "achieved_bf16_tflops": str(rate)}
        for name, rate in rates.items()
    ]
    linear = [
        {
            **LINEAR,
            "device": name,
            "rows": str(rows),
            "milliseconds": str(2e-9 * rows * 4096**2 / rate),
            **odd,
        }
        for name, rate in rates.items()
        for rows in TOKENS
    ]
    for name, rows in {"devices": sheet, "linear": linear}.items():
        _table(folder / f"{name}.csv.gz", rows)
    for name in set(transfer._public_times.FILES) - {"linear"}:
        _table(folder / f"{name}.csv.gz", linear[:1], lines=0)


def _table(path: Path, rows: list[dict[str, str]], lines: int | None = None) -> None:
    with gzip.open(path, "wt", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows[:lines])


def test_devices_of_others_that_differ_in_their_rates_alone_are_foretold(tmp_path: Path) -> None:
    public(tmp_path, {"slow": 100.0, "fast": 400.0, "faster": 500.0})
    transfer.main(["--public", str(tmp_path), "--results", str(tmp_path)])
    written = json.loads((tmp_path / "transfer_public.json").read_text())
    (found,) = written["families"].values()
    assert found["times"]["count"] == 3 * len(TOKENS)
    assert found["times"]["median_error"] < 0.01
    assert found["pairs"]["times"]["count"] == 6 * len(TOKENS)
    assert found["pairs"]["times"]["ordered_rightly"] > 0.9  # the shortest times are taken for the host's


def test_a_time_of_others_that_cannot_be_is_refused(tmp_path: Path) -> None:
    public(tmp_path, {"slow": 100.0, "fast": 400.0}, milliseconds="-1")
    with pytest.raises(ValueError, match=r"took -1\.0 ms: expected more than 0"):
        transfer.main(["--public", str(tmp_path), "--results", str(tmp_path)])


def test_each_gpu_of_a_database_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "both.sqlite"
    few = sorted({one.problem.key for one in MEASURED if one.problem["mode"] == "inference"})[:12]
    lstm = [one for one in MEASURED if one.problem.key in few]
    with Database.open(path, create=True) as database, database.write() as connection:
        stored.add(connection, [*lstm, *(alike(one) for one in lstm)])
    transfer.main(["--database", str(path), "--device", "another-gpu", "--results", str(tmp_path)])
    found = json.loads((tmp_path / "transfer_held_out_another-gpu.json").read_text())
    assert found["times"]["median_error"] < 1e-9
    assert found["source"].keys() == {"transfer"}
    assert found["there"].keys() == {"measured"}
    assert found["there"]["measured"]["times"] == found["times"]
    assert found["calibrated"]["problems"] == 6
    assert found["calibrated"]["times"]["candidates"] < found["times"]["candidates"]


def test_the_only_gpu_of_a_database_is_not_held_out(tmp_path: Path) -> None:
    path = tmp_path / "one.sqlite"
    with Database.open(path, create=True) as database, database.write() as connection:
        stored.add(connection, MEASURED)
    with pytest.raises(SystemExit, match="Nothing to hold out"):
        transfer.main(["--database", str(path), "--results", str(tmp_path)])
