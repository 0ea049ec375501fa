"""The comparison of tuning: its products are held out, its figures, its shards; run when small."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.result import RESULTS, read_result
from benchmarks.kernels import _schedule_runs, schedules
from kernel_selector.kernels.matmul.limits import Limits
from kernel_selector.kernels.matmul.ranking import Size, shortlist
from kernel_selector.kernels.matmul.tuned_table import TABLE

ROOT = Path(__file__).parents[3]


def record(product: str, chosen_ms: float, **more: Any) -> dict[str, Any]:
    """A product's record whose best schedule takes a millisecond."""
    costs = {"gpu_ms": 10.0, "wall_s": 1.0, "compile_s": 7.0}
    return {
        "product": product,
        "chosen": "a",
        "best": "b",
        "p50_ms": {"a": chosen_ms, "b": 1.0},
        "cublas_ms": 2.0,
        "shortlist": costs,
        "whole": {"gpu_ms": 300.0, "wall_s": 10.0, "compile_s": 150.0},
        **more,
    }


def sizes() -> list[tuple[int, int, int, int]]:
    found = []
    for text in (text for family in schedules.PRODUCTS for text in family):
        shape, _, dtype = text.partition(":")
        m, n, k = map(int, shape.split("x"))
        found.append((m, n, k, 4 if dtype == "float32" else 2))
    return found


def test_products_are_held_out_of_what_was_tuned() -> None:
    found = sizes()
    assert len(set(found)) == len(found) == 12
    tuned = {key[:4] for rows in TABLE.values() for key in rows}
    assert tuned.isdisjoint(found)
    for m, n, k, element in found:
        assert len(shortlist(Size(m, n, k, element), Limits(), 8)) == 8


def test_the_ranking_as_it_is_now_finds_fast_schedules_in_what_was_measured() -> None:
    result = read_result(RESULTS / "schedules_nvidia-h200.json.xz")
    shares = [schedules.replayed(record) for record in result["records"]]
    assert statistics.geometric_mean(shares) >= 0.97
    assert min(shares) >= 0.92


def test_a_shortlist_without_the_best_is_charged_for_it() -> None:
    def one(schedule: str, p50_ms: float) -> dict[str, Any]:
        sizes = {"rows": 64, "columns": 4096, "depth": 1024, "dtype": "bfloat16"}
        return {**sizes, "schedule": schedule, "status": "ok", "p50_ms": p50_ms}

    listed = [str(s) for s in shortlist(Size(64, 4096, 1024, 2), Limits(), 8)]
    slow = [one(schedule, 2.0) for schedule in listed]
    assert schedules.replayed({"whole": {"records": [*slow, one("another", 1.0)]}}) == 0.5
    assert schedules.replayed({"whole": {"records": slow}}) == 1.0


def test_figures_of_a_product() -> None:
    torchs = {"status": "ok", "gpu_ms": 250.0, "wall_s": 30.0}
    found = schedules.figures(record("1x2x3", 1.25, autotuning=torchs))
    assert (found["share"], found["cublas_share"]) == (0.8, 1.6)
    assert (found["gpu_time_of_whole"], found["gpu_time_of_autotuning"]) == (30, 25)
    assert found["wall_time_of_whole"] == 20
    crashed = schedules.figures(record("1x2x3", 1.25, autotuning={"status": "crashed", "reason": "x"}))
    assert "gpu_time_of_autotuning" not in crashed


def test_the_worst_decile_and_the_goals() -> None:
    line = schedules.summary([record(str(index), 1 + index / 100) for index in range(11)])
    assert line["figures"]["share_worst_decile"] == pytest.approx(1 / 1.09, rel=1e-3)
    assert line["figures"]["share_worst"] == pytest.approx(1 / 1.10, rel=1e-3)
    verdicts = {goal["figure"]: goal["verdict"] for goal in line["goals"]}
    assert verdicts == {
        "share": "missed",
        "share_worst_decile": "missed",
        "gpu_time_of_whole": "least",
        "gpu_time_of_autotuning": "not measured",
    }


def test_shards_are_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for shard in (1, 2):
        schedules._store(
            tmp_path, f"schedules_some-gpu.{shard}-of-2", "cpu", [record(f"{shard}x1x1", 1.0)], "abc"
        )
    assert schedules.main(["--join", "some-gpu", "--results", str(tmp_path)]) == 0
    (file,) = tmp_path.iterdir()
    result = json.loads(file.read_text())
    assert (file.name, result["name"]) == ("schedules_some-gpu.json", "schedules_some-gpu")
    assert result["commit"] == "abc"
    assert [one["product"] for one in result["records"]] == ["1x1x1", "2x1x1"]
    assert result["summary"]["products"] == 2
    assert schedules.main(["--join", "other", "--results", str(tmp_path)]) == 2
    assert "no shard of other" in capsys.readouterr().err


def test_one_gpu_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for before, device, after in (("", "cuda:2", "2"), ("5,7", "cuda:1", "7"), ("", "cuda", "0")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
        schedules._see_only(device)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == after
    with pytest.raises(ValueError, match="--device cpu: expected cuda"):
        schedules._see_only("cpu")


def test_torchs_line_is_read() -> None:
    found = _schedule_runs.AUTOTUNED.search(
        "SingleProcess AUTOTUNE benchmarking takes 0.3120 seconds and 4.5000 seconds precompiling "
        "for 21 choices"
    )
    assert found
    assert found.groups() == ("0.3120", "4.5000", "21")


def test_tuning_runs_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    command = [sys.executable, "-m", "benchmarks.kernels.schedules", "--smoke", "--processes", "1"]
    command += ["--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("schedules_*.json")
    (one,) = json.loads(file.read_text())["records"]
    assert one["shortlist"]["records"][0]["status"] == "ok"
    assert 0 < one["figures"]["share"] <= 1
