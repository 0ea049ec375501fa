"""The Triton kernels of additive attention without a GPU: in the interpreter, and compiled for GPUs."""

from __future__ import annotations

import pytest
from made_devices import CPU, H200, T4
from programs import run

from kernel_selector.kernels import registry
from kernel_selector.kernels.operators.additive_attention._triton.tiles import backward_cut, forward_cut
from tests.grids import batches, each_entry

pytest.importorskip("triton", reason="Triton is not installed")

OPERATOR = registry.operator("additive_attention")


def problems():
    shapes = [one for one in OPERATOR.examples if one.get("score", "additive") == "additive"]
    cases = [
        {"operator": "additive_attention", **shape, "dtype": dtype}
        for row, shape in enumerate(shapes)
        for dtype in ("float32", "bfloat16", "float16")[: 3 if row in (2, 4) else 2][:: (-1) ** row]
    ]
    return [*cases, {**cases[-1], "mode": "inference"}]


@pytest.mark.parametrize("given", batches(problems(), each_entry))
def test_kernels_pass_the_gate_in_the_interpreter(given):
    results = run("interpreted.py", "fused", given=given)
    assert len(results) == len(given)
    assert [result for result in results if not result[2]] == []


def test_other_calls_than_the_gates():
    assert len(run("interpreted_additive.py")) == 5


@pytest.mark.usefixtures("compilations")
def test_kernels_compile_for_gpus_that_are_not_here():
    cases = [
        dict(zip(("target", "dtype", "source", "width", "norm", "lengths", "whole"), values, strict=True))
        for values in (
            (90, "bf16", 100, 512, False, False, False),
            (90, "fp32", 7, 33, False, True, True),
            (90, "fp16", 2000, 1024, True, True, False),
            (80, "bf16", 50, 64, True, False, False),
        )
    ]
    cases[0]["ones"] = ["N"]
    cases[1]["ones"] = ["N", "T", "steps", "s_splits", "heads_steps"]
    cases[3]["ones"] = ["S", "T", "D", "N", "steps", "s_splits", "h_chunk", "rows", "heads_steps"]
    results = run("compiled_additive.py", given=cases)
    assert len(results) == sum(4 + case["norm"] for case in cases)
    assert all(shared <= 48 * 1024 for _, _, shared in results)


@pytest.mark.parametrize("sequences", [1, 3, 128, 4096])
@pytest.mark.parametrize(("target", "source"), [(1, 1), (1, 100), (100, 100), (7, 1000), (4096, 5)])
@pytest.mark.parametrize("width", [1, 33, 512, 1000])
def test_cuts_cover_everything_and_fill_a_gpu(sequences, target, source, width):
    for cut in (
        forward_cut(sequences, target, source, width),
        backward_cut(sequences, target, source, width),
    ):
        assert cut.block_s * cut.s_tiles >= source
        assert cut.block_d * cut.chunks >= width
        assert cut.steps * cut.t_splits >= target > cut.steps * (cut.t_splits - 1)
        assert 1 <= cut.s_splits <= cut.s_tiles
        assert cut.block_s % cut.rows(2) == cut.block_s % cut.rows(4) == 0
    # one part of dk for each of the splits: that there are no more than fill the GPU bounds their memory
    assert sequences * cut.chunks * (cut.t_splits - 1) <= 2 * 2048
    assert cut.t_splits * cut.s_splits * cut.chunks * sequences >= min(512, cut.s_tiles * (target // 16))


@pytest.mark.parametrize(
    ("given", "device", "reason"),
    [
        ({}, CPU, "compiles for GPUs"),
        ({}, T4, "compute capability 8.0"),
        ({"dtype": "float64"}, H200, "float64"),
        ({"score": "general"}, H200, "a product alone"),
    ],
)
def test_refusals_say_why(given, device, reason):
    unsupported = registry.implementation("additive_attention", "fused").unsupported
    assert reason in unsupported(OPERATOR.problem({"hidden": 8, "batch": 2, **given}), device)
    assert unsupported(OPERATOR.problem(hidden=8, batch=2), H200) is None
