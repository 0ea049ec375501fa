"""Triton's kernels of attention without a GPU: what they compute, interpreted, and that they compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

FOLDER = Path(__file__).parent
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
    for dtype in ("float32", "bfloat16", "float16")[: 3 if row == 3 else 2]
    if dtype != "float32" or shape["head_dim"] <= 128
]
CASES += [{"operator": "attention", **SHAPES[row], "mode": "inference"} for row in (1, 3)]


def run(program, *arguments, given=(), **more):
    """The lines of a program of this folder, run in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / program), *arguments],
        input=json.dumps(list(given)),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(FOLDER.parents[1]), "OMP_NUM_THREADS": "1", **more},
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_kernels_pass_the_gate_in_the_interpreter():
    results = run("interpreted.py", "fused", given=CASES)
    assert len(results) == len(CASES)
    assert [result for result in results if not result[2]] == []


def test_other_calls_than_the_gates():
    assert run("interpreted_attention.py") == ["all"]


def test_kernels_compile_for_gpus_that_are_not_here(tmp_path):
    cases = [
        {"target": 90, "dtype": "bf16", "head_dim": 128, "causal": True},
        {"target": 90, "dtype": "bf16", "head_dim": 64, "bias": True, "mask": "padding", "odd": True},
        {"target": 90, "dtype": "fp16", "head_dim": 80, "mask": "boolean", "seed": True},
        {"target": 90, "dtype": "fp32", "head_dim": 64},
        {"target": 86, "dtype": "fp16", "head_dim": 256, "causal": True},
    ]
    results = run("compiled_attention.py", given=cases, TRITON_CACHE_DIR=str(tmp_path))
    assert len(results) == 3 * len(cases) + 1
    for case, kernel, tile, taken, allowed, _, in_memory in results:
        assert taken <= allowed, (case, kernel, tile)
        assert in_memory <= 2048, (case, kernel, tile)
