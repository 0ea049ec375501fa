"""Compiles Triton's kernels of the norms for GPUs that are not there.

Standard input is a JSON list of cases; standard output a line of JSON for each of their kernels: the case,
the bytes of shared memory that the programs of a multiprocessor take together, and those that there are.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # without it triton 3.9 warns about its next default

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernel_selector.kernels.norms import launch
from kernel_selector.kernels.norms.triton_kernels import (
    norm_backward_kernel,
    norm_forward_kernel,
    norm_sums_kernel,
)

SHARED_BYTES = {80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024}
NUMBERS = {
    "rows": "i32",
    "programs": "i32",
    "threshold": "i32",
    "eps": "fp32",
    "least": "fp32",
    "scale": "fp32",
}
ELEMENT = {"fp32": 4, "fp16": 2, "bf16": 2}
FLOATS = {"mean_ptr", "rstd_ptr", "partial_ptr"}


def kernels(case):
    """(kernel, constants, warps, programs of a multiprocessor, registers of a thread) of a case."""
    hidden, rms = case["hidden"], case.get("rms", False)
    block = launch._block(hidden)
    tile, warps = launch.forward_tile(block)
    common = {"HIDDEN": hidden, "BLOCK": block, "RMS": rms}
    yield norm_forward_kernel, {**common, "ROWS": tile}, warps, 1, None
    loaded = 2 + ("dz_ptr" not in case["absent"])
    element_bytes = loaded * ELEMENT[case["dtype"]] + ("mask_ptr" not in case["absent"])
    tile, warps, stages, resident = launch.backward_tile(block, element_bytes, SHARED_BYTES[case["target"]])
    own = {
        "ROWS": tile,
        "STAGES": stages,
        "FROM_OUTPUT": case.get("from_output", False),
        "WITH_BIAS": not rms,
    }
    yield (
        norm_backward_kernel,
        {**common, **own},
        warps,
        resident,
        launch.REGISTERS // (32 * warps * resident),
    )
    yield (
        norm_sums_kernel,
        {"HIDDEN": hidden, "COLUMNS": launch.SUM_COLUMNS, "ROWS": launch.SUM_ROWS},
        4,
        1,
        None,
    )


def source(case, kernel, constants):
    """A kernel with the types of its arguments; `absent` pointers are None."""
    types, values, hints = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        name = parameter.name
        if name in constants or name in case["absent"]:
            types[name], values[place,] = "constexpr", constants.get(name)
        elif name.endswith("_ptr"):
            own = "fp32" if name in FLOATS else {"seed_ptr": "i64", "mask_ptr": "u8"}.get(name, case["dtype"])
            types[name] = f"*{own}"
            hints[place,] = [["tt.divisibility", 16]]
        else:
            types[name] = NUMBERS[name]
    return ASTSource(fn=kernel, signature=types, constexprs=values, attrs=hints)


def main() -> None:
    for case in json.load(sys.stdin):
        for kernel, constants, warps, resident, registers in kernels(case):
            target = GPUTarget("cuda", case["target"], 32)
            compiled = triton.compile(
                source(case, kernel, constants),
                target=target,
                options={"num_warps": warps, "maxnreg": registers},
            )
            assert compiled.asm["cubin"]
            print(
                json.dumps([case, resident * compiled.metadata.shared, SHARED_BYTES[case["target"]]]),
                flush=True,
            )
            if len(sys.argv) > 1:  # a folder for a closer look
                label = "_".join(str(case.get(key)) for key in ("label", "hidden", "dtype", "target"))
                for kind in ("ttgir", "ptx", "cubin"):
                    text = compiled.asm[kind]
                    path = os.path.join(sys.argv[1], f"{label}_{kernel.__name__}.{kind}")
                    with open(path, "wb") as file:
                        file.write(text if isinstance(text, bytes) else text.encode())


if __name__ == "__main__":
    main()
