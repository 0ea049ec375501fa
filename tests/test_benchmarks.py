"""The recurrent comparison: its rows, its arithmetic, its file, and a run of it on tiny problems."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _recurrent_figures, recurrent, recurrent_gate
from benchmarks._recurrent_limit import limit
from benchmarks._recurrent_rows import ROWS, Goal, Row, cells, of_users, problems, small
from benchmarks._recurrent_store import Store
from benchmarks._sessions import measure_all
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Status
from kernel_selector.kernels.measure import ONCE

LSTM = registry.operator("lstm")
H200 = Device(
    name="NVIDIA H200",
    kind="cuda",
    multiprocessors=132,
    copy_bytes_per_s=4.3e12,
    matmul_flops_per_s={"bfloat16": 7e14, "float16": 7e14},
)


def row(name: str) -> Row:
    return next(one for one in ROWS if one.name == name)


def cell(**times: dict[str, float]) -> dict[str, Any]:
    """A stored cell of 50 steps: medians in milliseconds by implementation and kind of run."""
    problem = LSTM.problem(hidden=256, batch=4, dtype="bfloat16")
    return {
        "key": problem.key,
        "problem": {"operator": "lstm", **problem.as_dict},
        "default": "torch_lstm",
        "limit_us": {"barrier": 1.0, "exchange": 2.0, "product": 0.5, "outside": 0.5, "total": 4.0},
        "candidates": {
            name: {
                "status": "ok",
                "held_bytes": int(kinds.pop("held", 0)),
                "times": {kind: {"p50_ms": value} for kind, value in kinds.items()},
            }
            for name, kinds in times.items()
        },
    }


def total(eager: float, graph: float | None = None, **more: float) -> dict[str, float]:
    return {"forward_backward": eager} | ({"graph_forward_backward": graph} if graph else {}) | more


def test_rows_are_what_was_asked() -> None:
    counts = {one.name: len(one.cases) for one in ROWS}
    assert counts["lstm"] == counts["gru"] == counts["rnn"] == 36
    assert counts["persistent"] == 32
    assert counts["deepbench"] == 53
    assert len(counts) == len(ROWS)
    for one in ROWS:
        cases = [(operator, sorted(given.items())) for operator, given in one.cases]
        assert all(cases.count(case) == 1 for case in cases), one.name
        assert {given["dtype"] for _, given in one.cases} <= {"bfloat16", "float16"}


@pytest.mark.parametrize("one", ROWS, ids=lambda one: one.name)
def test_every_case_is_a_problem(one: Row) -> None:
    known = registry.operators()
    assert len(problems(one)) == sum(operator in known for operator, _ in one.cases)
    assert len(problems(small(one))) <= 2


def test_rows_share_cells_and_slow_loops_are_timed_where_they_are_asked_for_alone() -> None:
    found = {one.problem.key: one for one in cells([row("lstm"), row("batch-4"), row("recompute")])}
    assert len(found) == 36 + 1 + 3 * sum(name in registry.operators() for name in ("gru", "rnn"))
    at_batch = {batch: LSTM.problem(hidden=1024, batch=batch, dtype="bfloat16").key for batch in (4, 16)}
    assert "unfused" in found[at_batch[4]].implementations
    assert not {"unfused", "cell_loop", "torch_compile", "torch_lstm_graph"} & set(
        found[at_batch[16]].implementations
    )
    assert {"torch_lstm", "hoisted"} <= set(found[at_batch[16]].implementations)


def test_loops_are_left_out_of_long_sequences() -> None:
    (long,) = cells([row("long-bf16")])
    assert not {"hoisted", "hoisted_batch_minor", "recompute"} & set(long.implementations)
    assert "torch_lstm" in long.implementations
    assert long.careful


def test_like_is_compared_with_like_and_the_best_with_the_best() -> None:
    found = _recurrent_figures.figures(
        cell(
            torch_lstm=total(6.0, 2.0), fused=total(3.0, 1.0), persistent=total(1.5, 1.25), unfused=total(9.0)
        )
    )
    assert found["eager"] == 4  # nn.LSTM 6 over persistent 1.5
    assert found["graph"] == 2  # its replay 2 over that of fused 1
    assert found["best"] == 2
    assert (found["winner"], found["peer"]) == ("fused", "torch_lstm")
    assert found["us"] == 20  # 1 ms for 50 steps
    assert found["over_limit"] == 5
    assert found["unfused"] == 6


def test_what_was_not_timed_has_no_figure() -> None:
    refused = cell(torch_lstm=total(6.0), fused={})
    assert _recurrent_figures.figures(refused) == {"peer": "torch_lstm"}
    without_torch = _recurrent_figures.figures(cell(fused=total(3.0)))
    assert not {"eager", "graph", "best"} & without_torch.keys()


def test_recomputing_is_judged_by_bytes_and_time() -> None:
    found = _recurrent_figures.figures(
        cell(
            torch_lstm=total(6.0, held=4000),
            fused=total(2.0, held=3000),
            recompute=total(3.0, held=1000),
            persistent_recompute=total(2.2, held=1250),
        )
    )
    assert found["held"] == 3.2
    assert found["held_time"] == 1.1


def test_a_row_has_geometric_means_its_worst_cell_and_verdicts() -> None:
    one = Row(
        name="two",
        title="two",
        cases=(("lstm", {"hidden": 1, "batch": 1}), ("lstm", {"hidden": 2, "batch": 1})),
        goals=(Goal("eager", 3, 6), Goal("worst", 1, 1.5), Goal("us", 60, 30), Goal("graph", 1, 2)),
    )
    keys = [problem.key for problem in problems(one)]
    stored = {
        key: {**cell(torch_lstm=total(4.0), fused=total(4.0 / ratio)), "key": key}
        for key, ratio in zip(keys, (2, 8), strict=True)
    }
    for each in stored.values():
        each["figures"] = _recurrent_figures.figures(each)
    line = _recurrent_figures.summary(one, stored)
    assert (line["cells"], line["measured"]) == (2, 2)
    assert line["figures"]["eager"] == 4
    assert line["figures"]["worst"] == 2
    assert line["worst_cell"]["key"] == keys[0]
    assert line["worst_cell"]["binds"] == "exchange"
    assert [goal["verdict"] for goal in line["goals"]] == ["least", "aim", "aim", "not measured"]
    assert _recurrent_figures.summary(one, {})["figures"] == {}


@pytest.mark.parametrize(
    ("goal", "value", "verdict"),
    [
        (Goal("eager", 3, 6), 6.0, "aim"),
        (Goal("eager", 3, 6), 2.99, "missed"),
        (Goal("us", 2.2, 1.5), 1.5, "aim"),
        (Goal("us", 2.2, 1.5), 2.2, "least"),
        (Goal("us", 2.2, 1.5), 2.3, "missed"),
    ],
)
def test_goals_rise_or_fall(goal: Goal, value: float, verdict: str) -> None:
    assert goal.verdict(value) == verdict


def test_the_limit_is_near_what_was_computed_by_hand() -> None:
    problem = LSTM.problem(hidden=768, batch=16, seq=1024, dtype="bfloat16", mode="inference")
    found = limit(problem, H200)
    assert found is not None
    # a barrier and an exchange of the state within a cluster, or between more blocks: 0.2 to 1.4 us
    assert 0.2 <= found.barrier + found.exchange + found.product <= 1.4
    training = limit(LSTM.problem({**problem.as_dict, "mode": "training"}), H200)
    assert training is not None
    assert training.total > 2 * found.total
    wide = limit(LSTM.problem(hidden=4096, batch=16, dtype="bfloat16"), H200)
    assert wide is not None
    assert wide.product > 10  # weights that do not fit on the chip are read again in each step
    assert limit(problem, replace(H200, matmul_flops_per_s={})) is None


def test_jobs_are_shared_by_processes_and_none_is_lost() -> None:
    jobs = [(LSTM.problem(hidden=size, batch=1, seq=2), ("torch_lstm",)) for size in (1, 2, 3)]
    never = float("inf")
    done = dict(measure_all(jobs, "cpu", policy=ONCE, processes=2, deadline=never))
    assert done.keys() == {problem for problem, _ in jobs}
    assert {record.status for records in done.values() for record in records} == {Status.OK}
    assert list(measure_all(jobs, "cpu", policy=ONCE, processes=1, deadline=0.0)) == []


def test_a_smoke_run_measures_stores_resumes_and_joins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--smoke", "--results", str(tmp_path)]
    assert recurrent.main([*where, "--rows", "lstm", "--shard", "1/2"]) == 0
    assert recurrent.main([*where, "--rows", "lstm", "step", "--resume"]) == 0
    (part,) = tmp_path.glob("*.1-of-2.json")
    (whole,) = set(tmp_path.glob("*.json")) - {part}
    result = json.loads(whole.read_text())
    keys = [record["key"] for record in result["records"]]
    assert len(keys) == len(set(keys)) >= 3
    assert {record["run"] for record in result["records"]} == {0, 1}  # one was there already
    assert {line["name"] for line in result["rows"]} >= {"lstm", "step"}
    for record in result["records"]:
        torch_lstm = record["candidates"].get("torch_lstm")
        if torch_lstm is not None:
            assert torch_lstm["times"]["forward"]["p50_ms"] > 0
            assert torch_lstm["error_ratio"] <= 1
    for run in result["runs"]:
        assert run.keys() >= {"commit", "device", "environment", "seed", "started_at", "versions"}
    before = len(result["runs"])
    assert recurrent.main([*where, "--rows", "lstm", "step", "--resume"]) == 0
    assert len(json.loads(whole.read_text())["runs"]) == before  # nothing was left to measure
    key = whole.stem.removeprefix("recurrent_")
    assert recurrent.main(["--results", str(tmp_path), "--join", key]) == 0
    assert not part.exists()
    assert [record["key"] for record in json.loads(whole.read_text())["records"]] == keys
    assert "worst" in capsys.readouterr().out


def test_a_spent_budget_leaves_cells_for_the_next_run(tmp_path: Path) -> None:
    where = ["--smoke", "--results", str(tmp_path), "--rows", "lstm"]
    assert recurrent.main([*where, "--budget", "0.001s"]) == 3
    assert recurrent.main([*where, "--resume"]) == 0


def test_a_changed_implementation_is_measured_again(tmp_path: Path) -> None:
    assert recurrent.main(["--smoke", "--results", str(tmp_path), "--rows", "step"]) == 0
    (file,) = tmp_path.glob("*.json")
    found = cells([small(row("step"))])[:1]
    store = Store(tmp_path, file.stem)
    store.load([file])
    assert store.holds(found[0])
    store.runs[0]["versions"]["lstm.hoisted"] = "another"
    assert not any(store.holds(one) for one in found if one.problem.operator == "lstm")


def test_the_gate_covers_what_each_operator_has() -> None:
    found = recurrent_gate.problems()
    assert len(found) == len(set(found))
    of_lstm = [one for one in found if one.operator == "lstm"]
    assert {one["hidden"] for one in of_lstm} == set(recurrent_gate.HIDDENS)
    assert {one["dtype"] for one in of_lstm} == {"float64", "float32", "float16", "bfloat16"}
    assert any(one["layers"] == 2 and one["bidirectional"] for one in of_lstm)


def test_a_smoke_run_of_the_gate_names_each_implementation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [one for one in recurrent_gate.problems() if one["hidden"] == 16 and one["batch"] == 3][:4]
    monkeypatch.setattr(recurrent_gate, "problems", lambda: few)
    assert recurrent_gate.main(["--smoke", "--results", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("recurrent_gate_*.json")
    result = json.loads(file.read_text())
    assert result["problems"] == len(few)
    assert result["problems_left_out"] == 0
    names = {f"lstm.{name}" for name in registry.implementations("lstm")}
    assert names <= result["implementations"].keys()
    for record in result["records"]:
        for outcome in record["results"].values():
            assert (outcome <= 1) if isinstance(outcome, float) else outcome["reason"]


def test_users_have_what_torch_has() -> None:
    assert of_users("torch_gru")
    assert of_users("torch_lstm_graph")
    assert not of_users("persistent")
