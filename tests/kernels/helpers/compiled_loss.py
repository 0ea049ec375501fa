"""Compiles the kernels on logits for GPUs that are not there.

Standard input is a JSON list of cases; standard output a line of JSON for each: the case, whether there is
machine code, and whether it loads 16 bytes at once.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # without it triton 3.9 warns about its next default

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernel_selector.kernels.operators.linear_cross_entropy import _triton
from kernel_selector.kernels.operators.linear_cross_entropy._logits import BLOCK, WARPS

TYPES = {"labels_ptr": "*i64", "smoothing": "fp32", "share": "fp32"}


def source(case):
    """A kernel with the types of its arguments, and its flags."""
    kernel = getattr(_triton, case["kernel"])
    known = {"BLOCK": BLOCK, "SMOOTH": case["smooth"], "GRADIENT": case["gradient"]}
    types, values, hints = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        name = parameter.name
        if name in known:
            types[name], values[place,] = "constexpr", known[name]
        elif name == "logits_ptr":
            types[name] = "*" + case["dtype"]
        else:
            types[name] = TYPES.get(name, "*fp32" if name.endswith("_ptr") else "i32")
        if name in ("logits_ptr", "stride"):
            hints[place,] = [["tt.divisibility", 16]]
    return ASTSource(fn=kernel, signature=types, constexprs=values, attrs=hints)


def main() -> None:
    for case in json.load(sys.stdin):
        target = GPUTarget("cuda", case["target"], 32)
        compiled = triton.compile(source(case), target=target, options={"num_warps": WARPS})
        print(json.dumps([case, bool(compiled.asm["cubin"]), "v4.b32" in compiled.asm["ptx"]]))


if __name__ == "__main__":
    main()
