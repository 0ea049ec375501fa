"""The comparison of linear layers: its rows, its figures; run when small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.rows import Row, cells, problems
from benchmarks.kernels import linear
from benchmarks.kernels._linear_rows import FIGURES, ROWS, generated, lane, of_users
from benchmarks.kernels._sublayer_rows import small
from kernel_selector.kernels import registry

SHAPE = {"rows": 4, "in_features": 8, "out_features": 8}


def row(name: str) -> Row:
    return next(one for one in ROWS if one.name == name)


def sizes(name: str) -> set[tuple[int, int, int]]:
    return {
        (problem["rows"], problem["in_features"], problem["out_features"]) for problem in problems(row(name))
    }


def test_rows_are_what_was_asked() -> None:
    layers = sizes("layers")
    assert len(layers) >= 28
    assert {rows for rows, _, _ in layers} >= {1, 64, 65536}
    features = {size for _, *both in layers for size in both}
    assert min(features) == 64
    assert features >= {30522, 32317, 50257}
    skinny = {(m, k, n) for m in (1, 4, 8, 16, 32, 64) for k, n in ((1024, 4096), (4096, 1024), (4096, 4096))}
    assert sizes("skinny") == skinny
    assert all(any(size % 8 for size in shape) for shape in sizes("odd"))
    assert sizes("odd_and_skinny") == skinny | sizes("odd")
    assert {(rows, n) for rows, _, n in sizes("fused")} >= {(512, 4096), (2048, 4096), (8192, 1024)}
    assert sizes("square") == {(size,) * 3 for size in (2048, 4096, 8192)}


@pytest.mark.parametrize("one", ROWS, ids=lambda one: one.name)
def test_every_case_is_a_problem_of_its_own(one: Row) -> None:
    found = problems(one)
    assert len(set(found)) == len(found) == len(one.cases)
    assert all(lane(problem) == 0 for problem in problems(small(one)))


def test_large_problems_have_a_lane() -> None:
    operator = registry.operator("linear")
    assert lane(operator.problem(rows=65536, in_features=768, out_features=3072)) == 1
    assert lane(operator.problem(rows=8192, in_features=768, out_features=50257)) == 2
    batched = registry.operator("batched_matmul")
    assert lane(batched.problem(batch=16, rows=2048, inner=128)) == 0
    assert lane(batched.problem(batch=64, rows=2048, inner=128)) == 1


def test_everybody_is_timed_and_the_compiler_where_it_was_asked() -> None:
    found = linear.COMPARISON.cells(ROWS)
    assert {cell.problem for cell in found} == {problem for one in ROWS for problem in problems(one)}
    compiled = {cell.problem for cell in found if "torch_compile" in cell.implementations}
    asked = ("layers", "odd_and_skinny", "fused", "peers")
    assert compiled == {problem for name in asked for problem in problems(row(name))}
    for cell in found:
        known = set(registry.implementations(cell.problem.operator))
        assert known - {"torch_compile"} <= set(cell.implementations)
    (one,) = cells([Row(name="x", title="", cases=(("linear", SHAPE),), goals=())])
    assert {name for name in one.implementations if of_users(name)} == {"torch_linear", "torch_compile"}
    assert {name for name in one.implementations if generated(name)} >= {"scheduled", "skinny", "persistent"}
    assert not any(map(generated, ("padded", "column_major", "torch_linear", "split")))


def cell(mode: str = "training", **milliseconds: tuple[float, float]) -> dict[str, Any]:
    """A stored cell: medians launched and replayed, by implementation."""
    total = "forward_backward" if mode == "training" else "forward"
    return {
        "problem": {"operator": "linear", "mode": mode},
        "default": "torch_linear",
        "flops": 4e9,
        "matmul_flops_per_s": 8e12,
        "candidates": {
            name: {
                "status": "ok",
                "times": {total: {"p50_ms": launched}, f"graph_{total}": {"p50_ms": graph}},
            }
            for name, (launched, graph) in milliseconds.items()
        },
    }


def test_figures_of_a_cell() -> None:
    found = FIGURES.of_cell(
        cell(torch_linear=(6, 4), torch_compile=(5, 3), padded=(3, 2), scheduled=(4, 2.5))
    )
    # launched torch.compile's 5 over padded's 3, replayed 3 over 2
    assert (found["eager"], found["graph"], found["default"], found["best"]) == (1.667, 1.5, 2, 1.5)
    assert (found["registered"], found["compiled"]) == (2, 1.5)
    assert (found["winner"], found["peer"], found["generated"]) == (
        "padded",
        "torch_compile",
        "scheduled",
    )
    assert found["cublas_share"] == 1.6
    assert found["probed_share"] == 0.2  # 4e9 operations in 2.5 ms are 1.6e12 a second
    lost = FIGURES.of_cell(cell("inference", torch_linear=(2, 1), scheduled=(4, 2)))
    assert (lost["registered"], lost["registered_eager"], lost["registered_graph"]) == (1, 1, 1)
    assert (lost["best"], lost["cublas_share"], lost["fastest"]) == (0.5, 0.5, "torch_linear")
    alone = FIGURES.of_cell(cell(torch_linear=(2, 1)))
    assert not {"best", "winner", "cublas_share", "compiled"} & alone.keys()


def test_a_smoke_run_stores_figures_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--smoke", "--results", str(tmp_path), "--commit", "abc123", "--rows", "odd", "batched"]
    assert linear.main(where) == 0
    (file,) = tmp_path.glob("linear_*.json")
    result = json.loads(file.read_text())
    assert result["commit"] == "abc123"
    operators = [record["problem"]["operator"] for record in result["records"]]
    assert {*operators} == {"linear", "batched_matmul"}
    for record in result["records"]:
        assert record["flops"] > 0
        assert record["figures"].keys() >= {"registered", "best", "eager", "winner", "ms"}
    capsys.readouterr()
    assert linear.main([*where, "--resume"]) == 0
    assert ": 0 problems to measure" in capsys.readouterr().err
