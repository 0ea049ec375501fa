"""Compiles generated matrix products for GPUs that are not there.

Standard input is a JSON list of cases; standard output a line of JSON for each: the case, the bytes of
shared memory that a program takes, the bytes that its schedule counts, and the tensor-core instructions.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter

os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # without it triton 3.9 warns about its next default

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernel_selector.kernels.matmul import pointwise
from kernel_selector.kernels.matmul.epilogue import ACTIVATIONS, BIAS, DROPOUT, KEEP, ON_LEFT, RESIDUAL, SCALE
from kernel_selector.kernels.matmul.generated import combine_kernel, matmul_kernel
from kernel_selector.kernels.matmul.schedule import parse
from kernel_selector.kernels.matmul.source import Form

STEPS = {step.name: step for step in (BIAS, KEEP, DROPOUT, RESIDUAL, SCALE)} | ACTIVATIONS
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
POINTWISE = {
    "upstream": pointwise.upstream_kernel,
    "downstream": pointwise.downstream_kernel,
    "row_sums": pointwise.row_sums_kernel,
}
COUNTS = {"GROUP", "PROGRAMS"}  # multiples of nothing
FLOATS = {"p", "dropout_scale", "factor", "left_factor"}
ONES = {"a_depth": "a_row", "b_depth": "b_column"}  # contiguous, or else flipped


def constants(case):
    """The kernel's constants besides strides of one."""
    whole = case.get("whole", True)
    precision = "tf32x3" if case["dtype"] == "fp32" else "ieee"
    wide = case.get("wide", False)
    if case["kernel"] == "combine":
        return {"SPLIT": 4, "WIDE": wide}
    if case["kernel"] == "row_sums":
        return dict(zip(("ROWS", "COLUMNS"), pointwise.SUM_TILE, strict=True)) | {"STEPS": 8}
    if case["kernel"] in POINTWISE:
        sizes = dict(zip(("ROWS", "GROUPS"), pointwise.TILE, strict=True))
        sizes |= {"STEPS": 8} if case["kernel"] == "upstream" else {}
        return {"ACTIVATION": case["steps"][0], "WIDE": wide, "EIGHTS": True, **sizes}
    align = 1 if case.get("ones") else case.get("align", 16)
    known = {f"{name}_ALIGN": align for name in ("N", "K", "A_ROW", "A_DEPTH", "B_DEPTH", "B_COLUMN")}
    flipped = case.get("flipped", (False, True))
    known |= {
        "A_ROW_ALIGN" if flipped[0] else "A_DEPTH_ALIGN": 1,
        "B_DEPTH_ALIGN" if flipped[1] else "B_COLUMN_ALIGN": 1,
    }
    return known | {"WHOLE": whole, "WIDE": wide, "PRECISION": precision}


def kernel_of(case):
    """The kernel, and the schedule that it is generated from."""
    steps = tuple(STEPS[name] for name in case["steps"] if name != "none")
    if case["kernel"] == "combine":
        return combine_kernel(steps, case.get("batched", False)), None
    if case["kernel"] in POINTWISE:
        return POINTWISE[case["kernel"]], None
    schedule = parse(case["schedule"])
    prologue = tuple(ON_LEFT[name] for name in case.get("prologue", ()))
    flips = tuple(case.get("flipped", (False, False)))
    form = Form(steps, prologue, case.get("batched", False), *(flips if schedule.bulk else (False, False)))
    return matmul_kernel(schedule, form), schedule


def type_of(name, case, schedule):
    """The type of a parameter."""
    if name in ("a_desc", "b_desc"):
        sides = {
            "a_desc": (schedule.block_m, schedule.block_k),
            "b_desc": (schedule.block_k, schedule.block_n),
        }
        sizes = sides[name][:: -1 if case["flipped"][name == "b_desc"] else 1]
        return f"tensordesc<{case['dtype']}[{', '.join(map(str, sizes))}]>"
    if name in FLOATS:
        return "fp32"
    if not name.endswith("_ptr"):
        return "i32"
    if name == "sums_ptr":
        return f"*{case.get('sums', 'fp32')}"
    wide = name == "parts_ptr" or (name == "c_ptr" and schedule is not None and schedule.split > 1)
    return "*i64" if name == "seed_ptr" else "*fp32" if wide else f"*{case['dtype']}"


def source(case):
    """A kernel with the types of its arguments, and its schedule."""
    kernel, schedule = kernel_of(case)
    known = constants(case)
    a_flipped, b_flipped = case.get("flipped", (False, True))
    ones = {
        "a_row" if a_flipped else "a_depth",
        "b_depth" if b_flipped else "b_column",
        *case.get("ones", ()),
    }
    aligned = case.get("align", 16) == 16
    types, values, hints = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        name = parameter.name
        if name in known or name in ones or (name == "kept_ptr" and case["steps"] == ["none"]):
            types[name], values[place,] = "constexpr", known.get(name, 1 if name in ones else None)
            continue
        types[name] = type_of(name, case, schedule)
        if name.endswith("_ptr") or (types[name] == "i32" and name not in COUNTS and aligned):
            hints[place,] = [["tt.divisibility", 16]]
    return ASTSource(fn=kernel, signature=types, constexprs=values, attrs=hints), schedule


def main() -> None:
    for case in json.load(sys.stdin):
        text, schedule = source(case)
        options = {"num_warps": pointwise.WARPS if schedule is None else schedule.warps}
        options |= {} if schedule is None else {"num_stages": schedule.stages}
        compiled = triton.compile(text, target=GPUTarget("cuda", case["target"], 32), options=options)
        assert compiled.asm["cubin"]
        counted = 0 if schedule is None else schedule.shared_bytes(BYTES[case["dtype"]])
        ptx = compiled.asm["ptx"]
        words = Counter(
            word
            for word in ("wgmma.mma_async", "mma.sync", "cp.async.bulk", "cp.async.cg", "cp.async.ca")
            for _ in range(ptx.count(word))
        )
        print(json.dumps([case, compiled.metadata.shared, counted, words]), flush=True)


if __name__ == "__main__":
    main()
