"""Generated matrix products without a GPU: what they compute in the interpreter, and that they compile."""

from __future__ import annotations

import importlib.util

import pytest
from made_devices import CPU, T4
from programs import run

from kernel_selector.kernels import devices, registry
from tests.grids import each_entry, in_turns, pairs_of

pytest.importorskip("triton", reason="Triton is not installed")

LINEAR = ["scheduled", "scheduled_gradients", "split_k", "persistent", "cublas_then_fused"]
H200 = devices.known_device("h200")
PROBLEMS = [
    {"rows": 1, "in_features": 1, "out_features": 1},
    {"rows": 33, "in_features": 63, "out_features": 17, "activation": "gelu"},
    {"rows": 5, "in_features": 300, "out_features": 31, "bias": False, "activation": "silu"},
    {"rows": 17, "in_features": 40, "out_features": 72, "activation": "relu"},
    {"rows": 70, "in_features": 24, "out_features": 130, "activation": "gelu_tanh", "residual": True},
    {"rows": 64, "in_features": 8, "out_features": 16, "residual": True, "dropout": 0.5},
]


def problems():
    cases = [
        {"operator": "linear", **problem, "dtype": dtype}
        for row, problem in enumerate(PROBLEMS)
        for dtype in ("float32", "bfloat16", "float16")[row % 2 : 2 + row % 2]
    ]
    return cases + [{**cases[row], "mode": "inference"} for row in (2, 8)]


@pytest.mark.parametrize("given", in_turns(problems(), LINEAR, each_entry))
def test_linear_passes_the_gate_in_the_interpreter(given):
    results = run("interpreted.py", given=given)
    assert len(results) == pairs_of(given)
    assert [result for result in results if not result[2]] == []


def batched_problems():
    return [
        {"operator": "batched_matmul", **shape, "dtype": dtype}
        for row, shape in enumerate(registry.operator("batched_matmul").examples)
        for dtype in ("float32", "bfloat16", "float16")[row % 2 : 2 + row % 2]
    ]


@pytest.mark.parametrize("given", in_turns(batched_problems(), ["scheduled"], each_entry))
def test_batched_products_pass_the_gate_in_the_interpreter(given):
    results = run("interpreted.py", given=given)
    assert len(results) == pairs_of(given)
    assert [result for result in results if not result[2]] == []


@pytest.mark.parametrize(
    "check", ["schedules", "layouts", "calls", "drops", "masks", "draws", "sums", "fault"]
)
def test_more_in_the_interpreter(check):
    results = run("interpreted_linear.py", check)
    assert results
    if check == "fault":
        assert "error" in results[0][1]


EVERYTHING = ["bias", "keep", "gelu", "dropout", "residual"]
COMPILED = [
    ("128x256x64 warps=8 stages=4 bulk persistent", EVERYTHING, "bf16", 90, {}),
    ("128x128x64 warps=4 stages=4 bulk", [], "fp16", 90, {"flipped": [True, False]}),
    ("16x64x128 warps=4 stages=4", ["bias", "relu"], "bf16", 90, {}),
    ("128x128x32 warps=8 stages=4 persistent", ["bias"], "fp32", 90, {}),
    ("64x64x64 warps=4 stages=4 split=4", ["bias"], "bf16", 90, {"whole": False, "align": 8}),
    # sizes of 1 are constants to Triton
    ("16x32x128 warps=2 stages=4", ["bias"], "bf16", 80, {"ones": ["M", "N", "K", "a_row", "b_column"]}),
    ("16x32x128 warps=2 stages=4 split=4", [], "fp16", 80, {"ones": ["M", "K"]}),
    ("64x64x64 warps=4 stages=3 persistent", ["keep"], "bf16", 90, {"ones": ["N", "b_column"]}),
    ("64x64x64 warps=4 stages=4", ["silu"], "bf16", 80, {"batched": True, "prologue": ["gelu_tanh"]}),
]


@pytest.mark.usefixtures("compilations")
def test_products_compile_for_gpus_that_are_not_here():
    cases = [
        {"kernel": "matmul", "schedule": schedule, "steps": steps, "dtype": dtype, "target": target, **more}
        for schedule, steps, dtype, target, more in COMPILED
    ]
    cases[0]["flipped"] = [False, True]
    cases += [
        {"kernel": "combine", "steps": EVERYTHING, "dtype": "bf16", "target": 80},
        {"kernel": "combine", "steps": ["bias"], "dtype": "fp16", "target": 90, "ones": ["M", "N"]},
        {"kernel": "upstream", "steps": ["none"], "dtype": "bf16", "target": 90},
        {"kernel": "upstream", "steps": ["relu"], "dtype": "bf16", "target": 90, "sums": "bf16"},
        {"kernel": "downstream", "steps": ["gelu_tanh"], "dtype": "fp16", "target": 80, "wide": True},
        {"kernel": "row_sums", "steps": [], "dtype": "fp32", "target": 90, "sums": "bf16"},
    ]
    results = run("compiled_linear.py", given=cases)
    assert len(results) == len(cases)
    for case, taken, counted, words in results:
        if case["kernel"] == "matmul":
            assert taken <= counted, case
            large = int(case["schedule"].split("x")[0]) >= 64
            assert ("wgmma.mma_async" in words) == (case["target"] == 90 and large), case
            assert ("cp.async.bulk" in words) == ("bulk" in case["schedule"])
            if "ones" not in case:  # 16 bytes at once
                assert ("cp.async.cg" in words) == ("bulk" not in case["schedule"])


@pytest.mark.parametrize(
    ("name", "given", "device", "reason"),
    [
        ("scheduled", {}, CPU, "compiles for GPUs"),
        ("scheduled", {}, T4, "capability 8.0"),
        ("scheduled", {"dtype": "float64"}, H200, "float64"),
        ("scheduled_gradients", {"mode": "inference"}, H200, "inference has none"),
        ("split_k", {"rows": 4096, "out_features": 4096}, H200, "4096 tiles"),
        ("split_k", {"in_features": 64}, H200, "depth of 256"),
        ("persistent", {"rows": 64}, H200, "no program would have a second"),
        ("skinny", {"rows": 17}, H200, "16 rows at most"),
        ("skinny", {"rows": 2, "dropout": 0.1}, H200, "no dropout"),
        ("skinny_cores", {"rows": 65}, H200, "64 rows at most"),
        ("skinny_cores", {"rows": 2, "dropout": 0.1}, H200, "no dropout"),
        ("skinny_cores", {"rows": 2}, H200, "16-bit elements"),
        ("skinny_cores", {"rows": 2, "in_features": 1004, "dtype": "float16"}, H200, "no multiple"),
        ("cublas_then_fused", {"mode": "inference"}, H200, "nothing to fuse"),
        ("torch_compile", {}, CPU, "C++ compiler"),
        ("padded", {}, H200, "nothing to pad"),
    ],
)
def test_refusals_say_why(name, given, device, reason):
    problem = registry.operator("linear").problem({"rows": 256, "in_features": 1024, **given})
    assert reason in registry.implementation("linear", name).unsupported(problem, device)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        (
            "scheduled",
            {},
            ("forward x W^T", "the weight as it lies", "warps=", "multiprocessors", "measured"),
        ),
        ("scheduled_gradients", {"rows": 4096}, ("gradient of x", "dz by columns", "bulk persistent")),
        ("split_k", {}, ("split=", "estimate")),
        ("persistent", {"rows": 4096}, ("persistent",)),
        ("skinny", {"rows": 4}, ("spatial('blocks', 1)", "4 columns a thread", "8388608 bytes once")),
        ("skinny_cores", {"rows": 4}, ("spatial('blocks', 1)", "tiles of 16", "8388608 bytes once")),
        ("cublas_then_fused", {}, ("cuBLAS's own choice", "one kernel more")),
    ],
)
def test_schedules_are_explained(name, given, words):
    shape = {"rows": 64, "in_features": 1024, "out_features": 4096, "dtype": "bfloat16"}
    problem = registry.operator("linear").problem({**shape, **given})
    text = importlib.import_module(f"kernel_selector.kernels.operators.linear.{name}").describe(problem, H200)
    assert [word for word in words if word not in text] == []


def test_batched_products_are_refused_and_explained():
    file = importlib.import_module("kernel_selector.kernels.operators.batched_matmul.scheduled")
    problem = registry.operator("batched_matmul").problem(batch=100_000, rows=8, inner=8)
    assert "65535 at most" in file.unsupported(problem, H200)
    problem = registry.operator("batched_matmul").problem(batch=64, rows=512, inner=64, transposed=True)
    assert "b by columns" in file.describe(problem, H200)
    split = registry.implementation("batched_matmul", "split")
    assert "100000 pairs" in split.unsupported(
        registry.operator("batched_matmul").problem(batch=100_000, rows=8, inner=8), H200
    )
