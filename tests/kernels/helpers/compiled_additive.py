"""Compiles the Triton kernels of additive attention for GPUs that are not there.

Standard input is a JSON list of cases; standard output a line of JSON for each kernel of each of them: the
case, the kernel, and the bytes of shared memory that a program takes. KEEP_CUBIN names a folder for the code.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # without it triton 3.9 warns about its next default

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernel_selector.kernels.operators.additive_attention._equations import EPSILON
from kernel_selector.kernels.operators.additive_attention._triton import forward as kernels
from kernel_selector.kernels.operators.additive_attention._triton.backward import scores_backward_kernel
from kernel_selector.kernels.operators.additive_attention._triton.launch import SOFTMAX_BLOCK, STATISTICS_TILE
from kernel_selector.kernels.operators.additive_attention._triton.tiles import (
    BACKWARD_WARPS,
    FORWARD_WARPS,
    REGISTERS,
    backward_cut,
    forward_cut,
)

NARROW = {"q_ptr", "k_ptr", "v_ptr", "gain_ptr", "shift_ptr", "weights_ptr", "d_weights_ptr"}
NORM = {"gain_ptr", "shift_ptr", "mean_ptr", "rstd_ptr", "d_gain_ptr", "d_shift_ptr", "h_ptr", "hx_ptr"}
ELEMENT = {"fp32": 4, "fp16": 2, "bf16": 2}


def constants(case):
    """Each kernel with its constants."""
    sizes = 128, 100, case["source"], case["width"]
    forward, backward = forward_cut(*sizes), backward_cut(*sizes)
    tanh = {"TANH": "precise" if case["dtype"] == "fp32" else "approximate"}
    block = min(SOFTMAX_BLOCK, 1 << (case["source"] - 1).bit_length())
    softmax = {"ROWS": SOFTMAX_BLOCK // block, "BLOCK": block}
    found = [
        (
            kernels.scores_kernel,
            tanh | {"WHOLE": forward.chunks == 1, "BLOCK_S": forward.block_s, "BLOCK_D": forward.block_d},
        ),
        (kernels.softmax_kernel, softmax),
        (kernels.softmax_backward_kernel, softmax),
        (
            scores_backward_kernel,
            tanh
            | {
                "ROWS": backward.rows(ELEMENT[case["dtype"]]),
                "BLOCK_S": backward.block_s,
                "BLOCK_D": backward.block_d,
            },
        ),
    ]
    return (
        [*found, (kernels.statistics_kernel, {"EPSILON": EPSILON, **STATISTICS_TILE})]
        if case["norm"]
        else found
    )


def options(case, kernel):
    """What a kernel is launched with."""
    if kernel is not scores_backward_kernel:
        return {"num_warps": FORWARD_WARPS}
    return {"num_warps": BACKWARD_WARPS, "maxnreg": None if case["norm"] else REGISTERS}


def source(case, kernel, known):
    """A kernel with the types of its arguments."""
    absent = set() if case["norm"] else NORM
    absent = absent | (set() if case["lengths"] else {"lengths_ptr"})
    types, values, hints = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        name = parameter.name
        if name in known or name in absent:
            types[name], values[place,] = "constexpr", known.get(name)
        elif name in case.get("ones", ()):  # which Triton makes constants of
            types[name], values[place,] = "constexpr", 1
        elif name.endswith("_ptr"):
            narrow = name in NARROW or (name in ("dq_ptr", "dk_ptr") and case["whole"])
            types[name] = "*" + ("i64" if name == "lengths_ptr" else case["dtype"] if narrow else "fp32")
            hints[place,] = [["tt.divisibility", 16]]
        else:
            types[name] = "i32"
            if name == "D" or name.endswith(("_batch", "_step", "_split")):
                hints[place,] = [["tt.divisibility", 16]]
    return ASTSource(fn=kernel, signature=types, constexprs=values, attrs=hints)


def main() -> None:
    for case in json.load(sys.stdin):
        for kernel, known in constants(case):
            target = GPUTarget("cuda", case["target"], 32)
            compiled = triton.compile(
                source(case, kernel, known), target=target, options=options(case, kernel)
            )
            assert compiled.asm["cubin"]
            name = kernel.fn.__name__
            if folder := os.environ.get("KEEP_CUBIN"):
                Path(folder, f"{name}.cubin").write_bytes(compiled.asm["cubin"])
            print(json.dumps([case, name, compiled.metadata.shared]), flush=True)


if __name__ == "__main__":
    main()
