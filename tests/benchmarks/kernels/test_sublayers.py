"""The comparison of norms, attention and the rest: its rows, figures, gate and tables; run when small."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.common import comparison as program
from benchmarks.common.comparison import Comparison
from benchmarks.common.comparison import main as compare
from benchmarks.common.result import read_result
from benchmarks.common.rows import Cell, Goal, Row, missing, problems
from benchmarks.common.sessions import measure_all
from benchmarks.common.store import Store
from benchmarks.kernels import gate, recurrent, sublayers
from benchmarks.kernels._gate_problems import LARGER, UNSAFE, Problems
from benchmarks.kernels._sublayer_rows import FIGURES, MOST_SCORES, ROWS, lane, of_users, prepared, small
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import GateResult, MeasurementFailed, Problem, Status
from kernel_selector.kernels.measure import ONCE
from scripts.tables import TABLES, gates
from scripts.tables import sublayers as tables

ROOT = Path(__file__).parents[3]
LSTM = registry.operator("lstm")
STAND_IN = Row(
    name="stand-in",
    title="layers that every version has",
    cases=tuple(
        ("lstm", {"hidden": 4, "batch": 1, "seq": 2, "mode": mode}) for mode in ("training", "inference")
    ),
    goals=(Goal("best", 1.0, 1.2), Goal("copy_share", 0.8, 0.92)),
)
GHOST = replace(STAND_IN, name="ghost", cases=(("no_such_operator", {"rows": 1}),))


def comparison(*rows: Row) -> Comparison:
    kind = replace(sublayers.COMPARISON.kind, rows=rows)
    return replace(sublayers.COMPARISON, kind=kind, small=lambda row: row)


def row(name: str) -> Row:
    return next(one for one in ROWS if one.name == name)


def test_rows_are_what_was_asked() -> None:
    counts = {one.name: len(one.cases) for one in ROWS}
    assert len(counts) == len(ROWS)
    grid = [given for operator, given in row("norms_bandwidth").cases if operator == "layer_norm"]
    assert {(given["rows"], given["hidden"]) for given in grid} == {
        (rows, hidden) for rows in (4096, 16384, 65536) for hidden in (768, 1024, 4096, 8192)
    }
    assert 40 <= counts["attention"] <= 50
    assert counts["feed_forward"] == 9
    for one in ROWS:
        cases = [(operator, sorted(given.items())) for operator, given in one.cases]
        assert all(cases.count(case) == 1 for case in cases), one.name


def test_attention_stays_within_what_its_reference_can_hold() -> None:
    for name in ("attention", "attention_odd"):
        for _, given in row(name).cases:
            sizes: Any = given
            assert sizes["batch"] * sizes["heads"] * sizes["seq"] ** 2 <= MOST_SCORES


@pytest.mark.parametrize("one", ROWS, ids=lambda one: one.name)
def test_every_case_of_an_operator_that_there_is_makes_a_problem(one: Row) -> None:
    known = [case for case in one.cases if case[0] in registry.operators()]
    assert len(problems(one)) == len(known)
    for problem in problems(small(one)):
        assert lane(problem) == 0


def test_an_operator_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert missing([GHOST, STAND_IN]) == ["no_such_operator"]
    where = ["--smoke", "--results", str(tmp_path)]
    assert compare(comparison(GHOST), "about", where) == 0
    assert "no operator no_such_operator" in capsys.readouterr().err
    assert gate.main(["no_such_operator", *where, "--processes", "1"]) == 0
    (file,) = tmp_path.glob("gate_sublayers_*.json")
    assert "no_such_operator" in json.loads(file.read_text())["impossible"][0]


def test_users_have_torch_and_what_is_written_out() -> None:
    assert all(
        map(of_users, ("torch_sdpa", "sdpa_flash", "eager", "flex", "written_out", "torch_compile_sum"))
    )
    assert not any(map(of_users, ("fused", "tempo", "recompute", "recompute_activation", "chunked")))


def cell(mode: str = "training", **candidates: dict[str, Any]) -> dict[str, Any]:
    """A stored cell: eager and graph medians in milliseconds, bytes held, by implementation."""
    total = "forward_backward" if mode == "training" else "forward"
    return {
        "problem": {"operator": "gelu", "mode": mode},
        "default": "torch_gelu",
        "moved_bytes": 4.2e9,
        "copy_bytes_per_s": 4.2e12,
        "candidates": {
            name: {
                "status": given.get("status", "ok"),
                "times": {
                    kind: {"p50_ms": given[form]}
                    for form, kind in (("ms", total), ("graph", f"graph_{total}"))
                    if form in given
                },
                **(
                    {"memory": {"held_bytes": given["held"], "peak_bytes": 2 * given["held"]}}
                    if "held" in given
                    else {}
                ),
            }
            for name, given in candidates.items()
        },
    }


def test_speed_bytes_and_bandwidth_of_a_cell() -> None:
    mib = 2**20
    found = FIGURES.of_cell(
        cell(
            torch_gelu={"ms": 6.0, "graph": 4.0, "held": 40 * mib},
            torch_compile={"ms": 3.0, "held": 30 * mib},
            fused={"ms": 5.0, "graph": 2.0, "held": 20 * mib},
            recompute={"ms": 4.0, "held": 10 * mib},
        )
    )
    assert found["eager"] == 0.75  # torch.compile's 3, launched, over recompute's 4
    assert found["graph"] == 2  # torch's replay 4 over that of fused 2
    assert (found["default"], found["best"], found["registered"]) == (2, 1.5, 2)
    assert (found["winner"], found["peer"], found["fastest"]) == ("fused", "torch_compile", "fused")
    assert found["copy_share"] == 0.5  # a millisecond at the rate of a copy, in 2
    assert (found["held"], found["held_users"], found["peak"]) == (2, 1.5, 2)
    assert (found["lightest"], found["lightest_held"], found["lightest_time"]) == ("recompute", 4, 2)
    assert found["prices"] == {"held": {"recompute": 0.2}, "peak": {"recompute": 0.1}}


def test_a_default_that_is_wrong_is_replaced_by_the_best_that_is_right() -> None:
    wrong = {"status": "incorrect"}
    found = FIGURES.of_cell(
        cell(torch_gelu=wrong, torch_compile={"ms": 3.0, "held": 2}, fused={"ms": 2.0, "held": 1})
    )
    assert found["registered"] == found["best"] == 1.5
    assert "default" not in found
    assert FIGURES.of_cell(cell(torch_gelu=wrong)) == {}
    alone = FIGURES.of_cell(cell(fused={"ms": 2.0, "held": 1}))
    assert not {"best", "registered", "held"} & alone.keys()


def test_a_smoke_run_stores_bytes_and_figures_and_resumes(tmp_path: Path) -> None:
    where = ["--smoke", "--results", str(tmp_path), "--commit", "abc123"]
    chosen = comparison(STAND_IN, GHOST)
    assert compare(chosen, "about", where) == 0
    (file,) = tmp_path.glob("sublayers_*.json")
    result = json.loads(file.read_text())
    assert [record["rows"] for record in result["records"]] == [["stand-in"]] * 2
    for record in result["records"]:
        assert record["moved_bytes"] > 0
        assert record["figures"].keys() >= {"best", "registered", "copy_share", "held", "prices", "winner"}
    assert compare(chosen, "about", [*where, "--resume"]) == 0
    assert len(json.loads(file.read_text())["runs"]) == 1
    assert "commit `abc123`" in tables.overview(tmp_path)
    assert "layers that every version has" not in tables.overview(tmp_path)  # no row of the comparison itself
    listed = tables.problems(tmp_path)
    assert all(problem.key in listed for problem in problems(STAND_IN))
    result["records"][0]["rows"] = ["loss"]
    file.write_text(json.dumps(result))
    assert "`hoisted`" in tables.prices(tmp_path)
    assert row("loss").title in tables.overview(tmp_path)


def test_tables_of_nothing_are_empty(tmp_path: Path) -> None:
    names = ("sublayers", "sublayer_problems", "sublayer_prices", "sublayer_gate", "bert_layer")
    assert [TABLES[name](tmp_path) for name in names] == [""] * len(names)


def test_the_programs_run_with_whatever_operators_there_are(tmp_path: Path) -> None:
    where = ["--smoke", "--results", str(tmp_path)]
    assert sublayers.main([*where, "--rows", "norms_bandwidth", "loss"]) == 0
    assert gate.main([*where, "--processes", "1"]) == 0


@pytest.mark.parametrize("operator", LARGER)
def test_larger_problems_are_different_and_possible(operator: str) -> None:
    given = [sorted(one.items()) for one in LARGER[operator]()]
    assert len(given) >= 7
    assert UNSAFE in [*LARGER["attention"]()]
    if operator in registry.operators():
        found = Problems(operator, larger=True)
        assert found.impossible == []
        assert len(found.larger) >= 5 * len(given) - 5 * len(found.examples)


def test_the_gate_judges_examples_and_names_who_was_judged(tmp_path: Path) -> None:
    assert gate.main(["lstm", "--smoke", "--processes", "1", "--results", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("gate_sublayers_*.json")
    result = json.loads(file.read_text())
    assert (result["problems"], result["problems_left_out"], result["unsafe"]) == (gate.SMOKE_PROBLEMS, 0, [])
    known = {f"lstm.{name}" for name in registry.implementations("lstm")}
    assert known - {"lstm.torch_compile"} <= result["implementations"].keys() <= known
    assert "`lstm.hoisted`" in gates.sublayers(tmp_path)


def test_where_torch_is_wrong_is_said_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = LSTM.problem(hidden=2, batch=1, seq=2)
    ((_, records),) = measure_all(
        [(problem, ("torch_lstm", "hoisted"))], ["cpu"], policy=ONCE, processes=1, deadline=float("inf")
    )
    (right,) = (one for one in records if one.implementation == "hoisted")
    failed = GateResult(passed=False, worst_error_ratio=None, detail="")
    wrong = replace(
        right, implementation="torch_lstm", status=Status.INCORRECT, reason="45056 not finite", gate=failed
    )
    found = gate._outcomes({problem: [right, wrong]}, [problem])
    assert "torch_lstm -> {'status': 'incorrect'" in capsys.readouterr().out
    gate_file = {
        "name": "gate_sublayers_x",
        "device": "x",
        "environment": {"torch": "2"},
        "commit": "c",
        "measured_at": "2026-01-01T",
        "problems": 1,
    }
    (tmp_path / "gate_sublayers_x.json").write_text(
        json.dumps({**gate_file, "implementations": {}, "unsafe": found})
    )
    text = gates.sublayers(tmp_path)
    assert "`torch_lstm` incorrect: 45056 not finite" in text
    assert "Right: `hoisted`" in text


def test_large_problems_go_to_one_process_each_and_none_is_lost() -> None:
    jobs = [(LSTM.problem(hidden=size, batch=1, seq=2), ("torch_lstm",)) for size in (1, 2, 3, 4)]
    done = measure_all(
        jobs,
        ["cpu"],
        policy=ONCE,
        processes=2,
        deadline=float("inf"),
        lane=lambda problem: problem["hidden"] - 1,
    )
    assert {problem for problem, _ in done} == {problem for problem, _ in jobs}


def test_a_process_that_prepares_and_cannot_start_again_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(*_: Any, **__: Any) -> Iterator[Any]:
        yield problems(STAND_IN)[0], []
        raise MeasurementFailed("no memory is left")

    monkeypatch.setattr(program, "measure_all", lost)
    session: Any = SimpleNamespace(torch_device="cuda:0")
    options: Any = SimpleNamespace(prepare=2, seed=0)
    assert [*program._prepare(sublayers.COMPARISON, [], session, options, float("inf")).values()] == [[]]
    assert "could not start again: no memory is left" in capsys.readouterr().err


def test_what_is_large_has_a_lane() -> None:
    rated = [
        lane(Problem("layer_norm", (("rows", 65536), ("hidden", hidden)))) for hidden in (1024, 4096, 8192)
    ]
    assert rated == [0, 1, 2]
    attention = Problem("attention", (("batch", 1), ("heads", 8), ("seq", 8192), ("kv_seq", 8192)))
    assert lane(attention) == 2
    assert not prepared(Cell(attention, ("torch_sdpa", "fused"), careful=False))
    assert prepared(Cell(attention, ("torch_sdpa", "flex"), careful=False))


def test_stored_recurrent_results_still_give_their_figures() -> None:
    file = ROOT / "benchmarks/results/recurrent_nvidia-h200.json.xz"
    stored = read_result(file)["records"]
    store = Store(file.parent, file.stem, recurrent.COMPARISON.kind)
    store.load([file])
    for key, one in store.cells.items():
        assert recurrent.COMPARISON.kind.figures.of_cell(one) == one["figures"], key
    found = [json.loads(line) for line in store.lines()]
    assert found == stored
    rows = {line["name"]: line["figures"] for line in store.summaries()}
    assert [(rows[name]["graph"], rows[name]["eager"]) for name in ("lstm", "gru", "rnn")] == [
        pytest.approx(found, rel=3e-3) for found in ((1.984, 2.363), (1.903, 2.124), (2.167, 2.194))
    ]
