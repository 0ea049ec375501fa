"""Triton's kernels without a GPU: what they compute in the interpreter, and that they compile for GPUs."""

from __future__ import annotations

from itertools import product

import pytest
from made_devices import CPU, H200, T4
from programs import run

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device
from kernel_selector.kernels.recurrent.layer import GRU, LSTM, RNN_TANH
from kernel_selector.kernels.recurrent.triton.sequence import _size
from kernel_selector.kernels.recurrent.triton.tiles import WARPS, Limits, best_tile, has_tile
from tests.grids import each_entry, in_turns, pairs_of, thinned

pytest.importorskip("triton", reason="Triton is not installed")

NAMES = ["fused", "fused_batch_minor", "persistent_l2"]
OPERATORS = ["lstm", "gru", "rnn"]
SHAPES = [
    {"hidden": 1, "batch": 1, "seq": 1},
    {"hidden": 33, "input": 7, "batch": 3, "seq": 5, "bias": False},
    {"hidden": 16, "batch": 17, "seq": 3, "bidirectional": True},
    {"hidden": 11, "input": 3, "batch": 4, "seq": 4, "layers": 2, "batch_first": True},
    {"hidden": 12, "input": 9, "batch": 3, "seq": 6, "bidirectional": True, "packed": True},
]


def problems(operator):
    cases = [
        {"operator": operator, **shape, "dtype": dtype}
        for row, shape in enumerate(SHAPES)
        for dtype in ("float32", "bfloat16", "float16")[: 3 if row in (1, 4) else 2][:: (-1) ** row]
    ]
    cases += [{**SHAPES[row], "operator": operator, "mode": "inference"} for row in (2, 4)]
    if operator == "rnn":
        cases += [{**case, "nonlinearity": "relu"} for case in cases if case["hidden"] == 12]
    return cases


@pytest.mark.parametrize(
    "given", [batch for operator in OPERATORS for batch in in_turns(problems(operator), NAMES, each_entry)]
)
def test_kernels_pass_the_gate_in_the_interpreter(given):
    results = run("interpreted.py", given=given)
    assert len(results) == pairs_of(given)
    assert [result for result in results if not result[2]] == []


OTHER_CALLS = [
    {"operator": operator, "hidden": 9, "input": 5, "batch": 3, "seq": 4, "bidirectional": True}
    for operator in OPERATORS
]


@pytest.mark.parametrize("given", in_turns(OTHER_CALLS, NAMES, each_entry))
def test_other_calls_than_the_gates_are_as_torchs(given):
    results = run("interpreted.py", "--calls", given=given)
    assert len(results) == pairs_of(given)
    assert all(passed for _, _, passed, _ in results)


@pytest.mark.parametrize("operator", thinned(OPERATORS, lambda _: ["waiting"]))
def test_programs_that_wait_in_vain_give_nan_and_end(operator):
    hidden = 300 if operator == "rnn" else 140  # more than one program takes
    given = [{"operator": operator, "hidden": hidden, "batch": 2, "seq": seq} for seq in (1, 2)]
    one_step, two_steps = run("interpreted.py", "--together", "persistent_l2", given=given)
    assert one_step[2], one_step[3]
    assert not two_steps[2]
    assert "not finite" in two_steps[3]


@pytest.mark.usefixtures("compilations")
def test_float32_tiles_fit_into_shared_memory():
    cases = [
        {
            "kernel": "persistent",
            "target": target,
            "cell": cell,
            "dtype": "fp32",
            "hidden": hidden,
            "batch": batch,
        }
        for target, cell, hidden, batch in (
            (90, "lstm", 650, 1),
            (90, "lstm", 650, 3),
            (90, "lstm", 650, 33),
            (90, "lstm", 1024, 1),
            (90, "lstm", 1024, 3),
            (90, "gru", 1024, 3),
            (90, "gru", 2048, 128),
            (90, "rnn_tanh", 1024, 33),
            (80, "lstm", 512, 1),
            (86, "rnn_tanh", 650, 3),
        )
    ]
    results = run("compiled.py", given=cases)
    assert len(results) == 2 * len(cases)
    for case, taken, allowed in results:
        assert taken <= allowed, case


@pytest.mark.usefixtures("compilations")
def test_kernels_compile_for_gpus_that_are_not_here():
    cases = [
        {
            "kernel": "persistent",
            "target": target,
            "cell": cell,
            "dtype": dtype,
            "hidden": hidden,
            "batch": batch,
        }
        for target, cell, dtype, hidden, batch in (
            (90, "lstm", "bf16", 1024, 16),
            (90, "lstm", "fp16", 1024, 64),
            (90, "gru", "bf16", 2048, 128),
            (90, "rnn_relu", "bf16", 1536, 16),
            (80, "lstm", "bf16", 512, 64),
            (80, "gru", "fp16", 200, 3),
            (86, "rnn_tanh", "fp32", 650, 20),
        )
    ]
    cases += [
        {"kernel": "fused", "target": 80, "cell": cell, "dtype": dtype, "minor": minor, "lengths": lengths}
        for cell, dtype, minor, lengths in (
            ("lstm", "bf16", False, True),
            ("gru", "fp16", True, True),
            ("rnn_tanh", "fp32", False, False),
        )
    ]
    cases.append({**cases[0], "hidden": 33, "batch": 5, "lengths": True})
    results = run("compiled.py", given=cases)
    assert len(results) == 2 * len(cases)
    for case, taken, allowed in results:
        assert taken <= allowed, case


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("cell", [LSTM, GRU, RNN_TANH])
def test_tiles_cover_a_layer_and_all_fit_at_once(cell, backward):
    limits = Limits(programs=132, shared_bytes=227 * 1024)
    for hidden in (1, 33, 128, 650, 1024, 2048, 4096):
        for batch in (1, 3, 16, 64, 256):
            tile = best_tile(_size(cell, (hidden, batch, 1), 2, backward), limits)
            if tile is None:
                assert hidden * batch > 2048 * 256
                continue
            assert tile.tiles * tile.groups <= limits.programs
            assert tile.tiles * tile.block_h >= hidden
            assert tile.groups * tile.block_b >= batch
            assert tile.split in (1, WARPS)
            assert tile.block_k >= 16 * tile.split


@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("cell", [LSTM, GRU, RNN_TANH])
def test_a_tile_is_there_where_a_best_one_is(cell, backward, element_bytes):
    answers = set()
    for programs, kibibytes in product((1, 16, 132), (8, 48, 227)):
        limits = Limits(programs, kibibytes * 1024)
        for shape in product((1, 33, 650, 2048, 8192), (1, 16, 65, 1000), (1, 2)):
            size = _size(cell, shape, element_bytes, backward)
            answers.add(has_tile(size, limits))
            assert has_tile(size, limits) is (best_tile(size, limits) is not None), (size, limits)
    assert answers == {False, True}


@pytest.mark.parametrize(
    ("hyperparameters", "device", "reason"),
    [
        ({}, CPU, "compiles for GPUs"),
        ({}, T4, "compute capability 8.0"),
        ({"dtype": "float64"}, H200, "float64"),
        ({"batch": 2**20, "hidden": 4096}, H200, "32 bits"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_refusals_say_why(operator, name, hyperparameters, device, reason):
    problem = registry.operator(operator).problem({"hidden": 8, "batch": 2, **hyperparameters})
    assert reason in registry.implementation(operator, name).unsupported(problem, device)


def test_persistent_kernels_are_refused_where_they_could_hang():
    unsupported = registry.implementation("lstm", "persistent_l2").unsupported
    problem = registry.operator("lstm").problem(hidden=2048, batch=4096)
    assert "no tiling of hidden=2048, batch=4096" in unsupported(problem, H200)
    assert "not known" in unsupported(problem, Device(name="some GPU", kind="cuda"))
    assert unsupported(registry.operator("lstm").problem(hidden=2048, batch=64), H200) is None
    for name, given in (("projection", 3), ("peepholes", True)):
        problem = registry.operator("lstm").problem({"hidden": 8, "batch": 2, name: given})
        assert "neither projections nor peepholes" in unsupported(problem, H200)
