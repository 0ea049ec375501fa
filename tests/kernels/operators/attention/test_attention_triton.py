"""Triton's kernels of attention without a GPU: what they compute, interpreted, and that they compile."""

from __future__ import annotations

import pytest
from programs import run

from tests.grids import batches, each_entry

pytest.importorskip("triton", reason="Triton is not installed")

SHAPES = [
    {"batch": 1, "heads": 2, "seq": 1, "head_dim": 8},
    {"batch": 2, "heads": 4, "kv_heads": 2, "seq": 33, "head_dim": 12, "causal": True},
    {"batch": 3, "heads": 2, "seq": 17, "kv_seq": 29, "head_dim": 5, "mask": "boolean"},
    {"batch": 2, "heads": 2, "seq": 40, "head_dim": 16, "mask": "padding", "bias": True},
    {"batch": 2, "heads": 2, "seq": 31, "kv_seq": 19, "head_dim": 24, "causal": True, "mask": "boolean"},
    {"batch": 2, "heads": 4, "kv_heads": 1, "seq": 150, "head_dim": 7, "causal": True, "bias": True},
    {"batch": 1, "heads": 1, "seq": 192, "head_dim": 32, "mask": "boolean"},
    {"batch": 2, "heads": 2, "kv_heads": 1, "seq": 70, "kv_seq": 200, "head_dim": 64, "mask": "padding"},
    {"batch": 1, "heads": 1, "seq": 200, "kv_seq": 70, "head_dim": 130, "causal": True, "dropout": 0.3},
]
CASES = [
    {"operator": "attention", **shape, "dtype": dtype}
    for row, shape in enumerate(SHAPES)
    for dtype in ("float32", "bfloat16", "float16")[: 3 if row == 3 else 2][:: (-1) ** row]
    if dtype != "float32" or shape["head_dim"] <= 128
]
CASES += [{"operator": "attention", **SHAPES[row], "mode": "inference"} for row in (1, 3)]


@pytest.mark.parametrize("given", batches(CASES, each_entry))
def test_kernels_pass_the_gate_in_the_interpreter(given):
    results = run("interpreted.py", "fused", given=given)
    assert len(results) == len(given)
    assert [result for result in results if not result[2]] == []


def test_other_calls_than_the_gates():
    assert run("interpreted_attention.py") == ["all"]


@pytest.mark.usefixtures("compilations")
def test_kernels_compile_for_gpus_that_are_not_here():
    cases = [
        {"target": 90, "dtype": "bf16", "head_dim": 128, "causal": True},
        {"target": 90, "dtype": "bf16", "head_dim": 64, "bias": True, "mask": "padding", "odd": True},
        {"target": 90, "dtype": "fp16", "head_dim": 80, "mask": "boolean", "seed": True},
        {"target": 90, "dtype": "fp32", "head_dim": 64},
        {"target": 86, "dtype": "fp16", "head_dim": 256, "causal": True},
    ]
    results = run("compiled_attention.py", given=cases)
    assert len(results) == 3 * len(cases) + 1
    for case, kernel, tile, taken, allowed, _, in_memory in results:
        assert taken <= allowed, (case, kernel, tile)
        assert in_memory <= 2048, (case, kernel, tile)
