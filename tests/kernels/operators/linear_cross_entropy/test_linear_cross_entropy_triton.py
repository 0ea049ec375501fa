"""The kernels on logits without a GPU: what they compute in the interpreter, and that they compile."""

from __future__ import annotations

import pytest
from programs import run

from tests.grids import each_entry, in_turns, pairs_of

pytest.importorskip("triton", reason="Triton is not installed")

NAMES = ["aligned", "chunked", "chunked_vocabulary", "gathered", "gathered_aligned"]
SHAPES = [
    {"rows": 1, "hidden": 1, "vocabulary": 1},
    {"rows": 33, "hidden": 7, "vocabulary": 63},
    {"rows": 30, "hidden": 12, "vocabulary": 523, "bias": True, "labelled": 0.6},
    {"rows": 17, "hidden": 9, "vocabulary": 401, "label_smoothing": 0.1, "labelled": 0.5},
]


def problems():
    cases = [
        {"operator": "linear_cross_entropy", **shape, "dtype": dtype}
        for row, shape in enumerate(SHAPES)
        for dtype in ("float32", "bfloat16", "float16")[: 3 if row == 2 else 2][:: (-1) ** row]
    ]
    return cases + [{**case, "mode": "inference"} for case in cases[-2:]]


@pytest.mark.parametrize("given", in_turns(problems(), NAMES, each_entry))
def test_kernels_pass_the_gate_in_the_interpreter(given):
    results = run("interpreted_loss.py", given=given)
    assert len(results) == pairs_of(given)
    assert [result for result in results if not result[2]] == []


@pytest.mark.usefixtures("compilations")
@pytest.mark.parametrize("target", [80, 90])
def test_kernels_compile_for_gpus_that_are_not_here(target):
    cases = [
        {"kernel": kernel, "target": target, "dtype": dtype, "smooth": smooth, "gradient": gradient}
        for kernel, dtype, smooth, gradient in (
            ("cross_entropy_kernel", "bf16", False, True),
            ("cross_entropy_kernel", "fp32", True, True),
            ("cross_entropy_kernel", "fp16", False, False),
            ("fold_kernel", "bf16", True, False),
            ("fold_kernel", "fp32", False, False),
            ("gradient_kernel", "fp16", False, False),
        )
    ]
    results = run("compiled_loss.py", given=cases)
    assert len(results) == len(cases)
    # loads are 16 bytes wide, although the number of columns may be anything
    assert all(compiled and wide for _, compiled, wide in results)
