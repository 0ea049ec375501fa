"""What single implementations of lstm, gru and rnn refuse, and what they count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from twins import CPU

from benchmarks.kernels import cudnn_errors
from kernel_selector.kernels import registry
from kernel_selector.kernels.devices import known_device

ROOT = Path(__file__).parents[3]
GATED = ("lstm", "gru", "rnn")


@pytest.mark.parametrize(("operator", "times"), [("lstm", 3), ("gru", 5)])
def test_what_recompute_holds_of_hoisted(operator, times):
    problem = registry.operator(operator).problem(hidden=32, batch=8, seq=10)
    held = {
        name: registry.implementation(operator, name).work(problem).saved_bytes
        for name in ("hoisted", "recompute")
    }
    assert held["recompute"] * times == held["hoisted"]


@pytest.mark.parametrize(
    ("operator", "name", "hyperparameters", "reason"),
    [
        ("lstm", "cell_loop", {"dtype": "bfloat16"}, "bfloat16"),
        ("lstm", "cell_loop", {"projection": 4}, "neither projections nor peepholes"),
        ("lstm", "cell_loop", {"peepholes": True}, "neither projections nor peepholes"),
        ("lstm", "torch_lstm", {"peepholes": True}, "no peepholes"),
        ("gru", "cell_loop", {"dtype": "float16"}, "step by step in float16"),
        ("rnn", "cell_loop", {"dtype": "bfloat16"}, "step by step in bfloat16"),
        *((operator, "unfused", {"dtype": "bfloat16", "seq": 101}, "101 steps") for operator in GATED),
        *((operator, "unfused", {"dtype": "float16", "seq": 65}, "64 steps") for operator in GATED),
    ],
)
def test_refusals_say_why(operator, name, hyperparameters, reason):
    problem = registry.operator(operator).problem({"hidden": 8, "batch": 2, **hyperparameters})
    assert reason in registry.implementation(operator, name).unsupported(problem, CPU)


@pytest.mark.parametrize("operator", ["lstm", "gru", "rnn"])
def test_torch_is_refused_where_cudnn_is_wrong_and_nowhere_else(operator):
    default = registry.implementation(operator, registry.operator(operator).default)
    file = ROOT / f"benchmarks/results/cudnn_{operator}_errors.json"
    records = json.loads(file.read_text())["records"]
    wrong = {registry.operator(operator).problem(_without(record, "detail")) for record in records}
    scanned = set(cudnn_errors.problems(operator))
    assert wrong < scanned
    for problem in scanned:
        reason = default.unsupported(problem, known_device("h200"))
        assert (reason is not None) is (problem in wrong), problem
        assert default.unsupported(problem, CPU) is None


def _without(record, name):
    return {key: value for key, value in record.items() if key != name}
