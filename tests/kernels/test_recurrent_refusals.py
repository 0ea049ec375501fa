"""What single implementations of lstm, gru and rnn refuse, and what they count."""

from __future__ import annotations

import pytest
from twins import CPU

from kernel_selector.kernels import registry
from kernel_selector.kernels.devices import known_device

OPERATOR = registry.operator("lstm")
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


@pytest.mark.parametrize(
    ("hidden", "batch", "dtype", "refused"),
    [
        (136, 16, "float16", True),
        (40, 8, "float16", True),
        (184, 256, "float16", True),
        (128, 16, "float16", False),
        (136, 12, "float16", False),
        (132, 16, "float16", False),
        (200, 16, "float16", False),
        (24, 16, "float16", False),
        (136, 16, "bfloat16", False),
    ],
)
def test_torch_is_refused_where_cudnn_is_wrong(hidden, batch, dtype, refused):
    problem = OPERATOR.problem(hidden=hidden, batch=batch, dtype=dtype)
    unsupported = registry.implementation("lstm", "torch_lstm").unsupported
    assert (unsupported(problem, known_device("h200")) is not None) is refused
    assert unsupported(problem, CPU) is None
