"""Triton's kernels of the norms without a GPU: what the interpreter computes, and that they compile."""

from __future__ import annotations

import pytest
from programs import run

from tests.grids import each_entry, in_turns, pairs_of

pytest.importorskip("triton", reason="Triton is not installed")

SHAPES = {
    "layer_norm": (
        {"rows": 1, "hidden": 1},
        {"rows": 5, "hidden": 33},
        {"rows": 7, "hidden": 40, "bias": False},
        {"rows": 70, "hidden": 9, "affine": False},
        {"rows": 3, "hidden": 1500},
    ),
    "rms_norm": (
        {"rows": 5, "hidden": 33},
        {"rows": 70, "hidden": 9, "affine": False},
        {"rows": 3, "hidden": 1500},
    ),
    "dropout_add_norm": (
        {"rows": 5, "hidden": 33, "dropout": 0.0, "prenorm": True},
        {"rows": 6, "hidden": 40, "bias": False, "prenorm": True},
        {"rows": 9, "hidden": 65, "affine": False},
        {"rows": 7, "hidden": 130, "norm": "rms", "dropout": 0.5},
        {"rows": 5, "hidden": 1, "prenorm": True},
    ),
}
NAMES = {
    "layer_norm": ("fused", "recompute", "from_output"),
    "rms_norm": ("fused", "recompute", "from_output"),
    "dropout_add_norm": ("fused", "fused_bit_mask"),
}
CALLS = (
    "weights_near_zero",
    "what_is_kept",
    "bad_input",
    "other_calls",
    "dropout_is_replayed",
    "second_derivatives",
    "added_calls",
    "faults_are_found",
)


def problems(operator):
    cases = [
        {"operator": operator, **shape, "dtype": dtype}
        for row, shape in enumerate(SHAPES[operator])
        for dtype in ("float32", "bfloat16", "float16")[: 3 if row == 1 else 2][:: (-1) ** row]
    ]
    return [*cases, {"operator": operator, **SHAPES[operator][1], "mode": "inference"}]


@pytest.mark.parametrize(
    "given",
    [batch for operator in SHAPES for batch in in_turns(problems(operator), NAMES[operator], each_entry)],
)
def test_kernels_pass_the_gate_in_the_interpreter(given):
    results = run("interpreted.py", given=given)
    assert len(results) == pairs_of(given)
    assert [result for result in results if not result[2]] == []


@pytest.mark.parametrize("call", CALLS)
def test_other_calls_than_the_gates(call):
    assert run("interpreted_norms.py", call) == []


@pytest.mark.usefixtures("compilations")
def test_kernels_compile_for_gpus_that_are_not_here():
    plain = ["residual_ptr", "z_ptr", "seed_ptr", "mask_ptr", "dz_ptr", "dropped_ptr"]
    from_output = [*plain, "mean_ptr"]
    cases = [
        {"hidden": 768, "dtype": "bf16", "target": 90, "absent": plain},
        {"hidden": 33, "dtype": "fp16", "target": 80, "absent": [*plain, "mean_ptr", "rstd_ptr"]},
        {"hidden": 5120, "dtype": "bf16", "target": 90, "absent": from_output, "from_output": True},
        {"hidden": 16384, "dtype": "fp32", "target": 86, "absent": [*plain, "mean_ptr"], "rms": True},
        {"hidden": 4096, "dtype": "bf16", "target": 90, "absent": ["mask_ptr"]},
        {"hidden": 8192, "dtype": "fp32", "target": 90, "absent": ["mask_ptr"]},
        {"hidden": 1000, "dtype": "bf16", "target": 80, "absent": ["dz_ptr"]},
    ]
    results = run("compiled_norms.py", given=cases)
    assert len(results) == 3 * len(cases)
    for case, taken, there in results:
        assert taken <= there, case
