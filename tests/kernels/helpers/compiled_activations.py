"""Compiles the Triton kernels of activations and feed-forward layers for GPUs that are not there.

Standard input is a JSON list of cases {"target", "kernel", "dtype", "constants", "absent", "wide", "odd"}:
values of constants, pointers that are None, scalars of 64 bits, and those that 16 need not divide. Standard
output is a line of JSON for each: the case, and whether its widest loads and stores are of 16 bytes.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # without it triton 3.9 warns about its next default

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernel_selector.kernels.activations import triton_pointwise
from kernel_selector.kernels.operators.feed_forward._triton import kernels as _triton_kernels
from kernel_selector.kernels.operators.feed_forward._triton import polynomial_kernels as _triton_polynomial

FILES = (triton_pointwise, _triton_kernels, _triton_polynomial)
TYPES = {"bits_ptr": "*u8", "seed_ptr": "*i64", "scale_ptr": "*fp32", "sums_ptr": "*fp32", "codes_ptr": "*i8"}


def source(case):
    """A kernel with the types of its arguments."""
    kernel = next(getattr(file, case["kernel"]) for file in FILES if hasattr(file, case["kernel"]))
    constants = case["constants"] | dict.fromkeys(case.get("absent", ()))
    types, values, hints = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        name = parameter.name
        if name in constants:
            types[name], values[place,] = "constexpr", constants[name]
        elif name.endswith("_ptr"):
            types[name] = TYPES.get(name, "*" + case["dtype"])
            hints[place,] = [["tt.divisibility", 16]]
        elif name == "scale":
            types[name] = "fp32"
        else:
            types[name] = "i64" if name in case.get("wide", ()) else "i32"
            if name not in case.get("odd", ()):
                hints[place,] = [["tt.divisibility", 16]]
    return ASTSource(fn=kernel, signature=types, constexprs=values, attrs=hints)


def main() -> None:
    for case in json.load(sys.stdin):
        target = GPUTarget("cuda", case["target"], 32)
        compiled = triton.compile(source(case), target=target, options={"num_warps": 4})
        assert compiled.asm["cubin"]
        ptx = compiled.asm["ptx"]
        loads = "ld.global.v4.b32" in ptx or "ld.global.L1::evict_last.v4.b32" in ptx
        print(json.dumps([case, loads and "st.global.v4.b32" in ptx]))


if __name__ == "__main__":
    main()
