"""The arithmetic of the recurrent comparison: figures of cells and rows, goals, and the physical limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.common.rows import Goal, Row, problems
from benchmarks.kernels._recurrent_limit import limit
from benchmarks.kernels._recurrent_rows import FIGURES, of_users
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device

LSTM = registry.operator("lstm")
H200 = Device(
    name="NVIDIA H200",
    kind="cuda",
    multiprocessors=132,
    copy_bytes_per_s=4.3e12,
    matmul_flops_per_s={"bfloat16": 7e14, "float16": 7e14},
)


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
                "memory": {"held_bytes": int(kinds.pop("held", 0))},
                "times": {kind: {"p50_ms": value} for kind, value in kinds.items()},
            }
            for name, kinds in times.items()
        },
    }


def total(eager: float, graph: float | None = None, **more: float) -> dict[str, float]:
    return {"forward_backward": eager} | ({"graph_forward_backward": graph} if graph else {}) | more


def test_like_is_compared_with_like_and_the_best_with_the_best() -> None:
    found = FIGURES.of_cell(
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


def test_what_replays_a_graph_itself_is_a_graph_and_never_launched() -> None:
    found = FIGURES.of_cell(
        cell(
            torch_lstm=total(6.0, 2.0),
            fused=total(3.0, 1.6),
            fused_graph=total(1.0),
            peer_compiled=total(4.0),
        )
    )
    assert found["graph"] == 2  # torch's replay 2 over a call of fused_graph 1
    assert found["eager"] == pytest.approx(4 / 3, rel=1e-3)  # the best of users, compiled, over fused
    assert FIGURES.of_cell(cell(torch_lstm=total(6.0), fused_graph=total(1.0))).get("eager") is None
    users = FIGURES.of_cell(
        cell(torch_lstm=total(6.0, 2.0), torch_lstm_graph=total(1.5), fused=total(3.0, 1.0))
    )
    assert (users["graph"], users["eager"]) == (1.5, 2)


def test_torch_in_float16_stands_beside_bfloat16() -> None:
    stored = cell(torch_lstm=total(6.0, 2.0), fused=total(3.0, 1.0))
    assert "graph_float16" not in FIGURES.of_cell(stored)
    stored["float16"] = {"status": "ok", "times": {"graph_forward_backward": {"p50_ms": 1.25}}}
    assert FIGURES.of_cell(stored)["graph_float16"] == 1.25


def test_what_was_not_timed_has_no_figure() -> None:
    refused = cell(torch_lstm=total(6.0), fused={})
    assert FIGURES.of_cell(refused) == {"peer": "torch_lstm", "users_us": 120}
    without_torch = FIGURES.of_cell(cell(fused=total(3.0)))
    assert not {"eager", "graph", "best"} & without_torch.keys()


def test_recomputing_is_judged_by_bytes_and_time() -> None:
    found = FIGURES.of_cell(
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
        each["figures"] = FIGURES.of_cell(each)
    line = FIGURES.of_row(one, stored)
    assert (line["cells"], line["measured"]) == (2, 2)
    assert line["figures"]["eager"] == 4
    assert line["figures"]["worst"] == 2
    assert line["worst_cell"]["key"] == keys[0]
    assert line["worst_cell"]["binds"] == "exchange"
    assert [goal["verdict"] for goal in line["goals"]] == ["least", "aim", "aim", "not measured"]
    assert FIGURES.of_row(one, {})["figures"] == {}


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


def test_users_have_what_torch_has() -> None:
    assert of_users("torch_gru")
    assert of_users("torch_lstm_graph")
    assert not of_users("persistent")
