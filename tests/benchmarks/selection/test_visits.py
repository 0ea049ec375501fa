"""Two sweeps of the same problems: how far they agree, and what choosing by one of them loses."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from math import log
from pathlib import Path
from typing import Any

import pytest

from benchmarks.selection import visits
from kernel_selector.kernels.contract import Record
from tests.selector import replay

ONE, OTHER = replay.problems(hidden=(32, 64), batch=(1,), seq=(10,), layers=(1,), mode=("training",))
TIMES = {"torch_lstm": 1.0, "hoisted": 2.0, "recompute": 3.0}


def sweep(times: Mapping[str, float] = TIMES, factor: float = 1.0) -> list[Record]:
    """Both problems; on the second everything takes `factor` times as long."""
    return [
        replay.record(problem, name, time_ms=time_ms * scale, memory_bytes=1)
        for problem, scale in ((ONE, 1.0), (OTHER, factor))
        for name, time_ms in times.items()
    ]


def figures(first: list[Record], second: list[Record]) -> Any:
    return visits.compared(first, second)["lstm"]


def test_a_host_that_is_slower_for_all_candidates_decides_nothing() -> None:
    found = figures(sweep(), sweep(factor=1.2))
    assert (found["problems"], found["candidates"]) == (2, 6)
    assert found["difference"]["p95"] == pytest.approx(log(1.2), abs=1e-4)
    assert found["difference_within_problems"] == {"p50": 0.0, "p80": 0.0, "p95": 0.0}
    assert found["choice_by_the_other"]["gmean"] == 1


def test_who_looks_faster_in_one_sweep_alone_is_a_loss() -> None:
    found = figures(sweep(), sweep({**TIMES, "hoisted": 0.8}))
    assert found["difference_within_problems"]["p95"] > 0.3
    # each choice is judged by the other sweep: hoisted takes twice the best there, torch_lstm 1 / 0.8
    assert found["choice_by_the_other"]["gmean"] == pytest.approx((2 * 1.25) ** 0.5, abs=1e-4)
    assert found["choice_by_the_other"]["within_5_percent"] == 0


def test_candidates_of_one_sweep_alone_are_left_out() -> None:
    found = figures(sweep({**TIMES, "cell_loop": 0.1}), sweep())
    assert found["candidates"] == 6
    assert visits.compared(sweep({"hoisted": 1.0}), sweep()) == {}


def test_both_sweeps_are_kept_beside_the_figures(tmp_path: Path) -> None:
    files = [tmp_path / "first.jsonl", tmp_path / "second.jsonl.xz"]
    texts = ["\n".join(one.to_json() for one in sweep(factor=factor)) for factor in (1.0, 1.2)]
    files[0].write_text(texts[0])
    files[1].write_bytes(lzma.compress(texts[1].encode()))
    visits.main([*map(str, files), "--commit", "abc", "--results", str(tmp_path)])
    (written,) = tmp_path.glob("visits_*.json")
    result = json.loads(written.read_text())
    assert (result["commit"], result["operators"]["lstm"]["problems"]) == ("abc", 2)
    kept = [lzma.decompress((tmp_path / name).read_bytes()).decode() for name in result["records"]]
    assert kept == texts
