"""Compiles Triton's kernels of attention for GPUs that are not there.

Standard input is a JSON list of cases; standard output a line of JSON for each kernel of each: the case, the
kernel, its tile, the bytes of shared memory that a program takes and those that it may have, the registers of
a thread, and the bytes that it keeps in memory for want of more.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # without it triton 3.9 warns about its next default

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernel_selector.kernels.operators.attention._triton.backward import (
    attention_keys_kernel,
    attention_queries_kernel,
)
from kernel_selector.kernels.operators.attention._triton.bias import attention_bias_kernel
from kernel_selector.kernels.operators.attention._triton.forward import attention_forward_kernel
from kernel_selector.kernels.operators.attention._triton.tiles import (
    LEAST_SHARED_BYTES,
    SHARED_BYTES,
    padded,
    tiles_of,
)

ELEMENT = {"fp32": 4, "fp16": 2, "bf16": 2}
TYPES = {"mask_ptr": "u8", "seed_ptr": "i64", "sums_ptr": "fp32", "delta_ptr": "fp32"}
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def launches(case):
    """The kernels of a case with their tiles."""
    tiles = tiles_of(case["head_dim"], ELEMENT[case["dtype"]], divmod(case["target"], 10))
    busy = case.get("bias") or case.get("seed") or case.get("mask") == "boolean"
    yield attention_forward_kernel, tiles.busy_out if busy else tiles.out
    yield attention_queries_kernel, tiles.queries
    yield attention_keys_kernel, tiles.keys
    if case.get("bias"):
        yield attention_bias_kernel, tiles.bias


def source(case, kernel, tile):
    """A kernel with the types of its arguments."""
    absent = {name for name in ("mask", "bias", "seed") if not case.get(name)}
    known = {
        "CAUSAL": case.get("causal", False),
        "ONE_ROW": case.get("mask") == "padding",
        "D": case["head_dim"],
        "BLOCK_D": padded(case["head_dim"]),
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "PRECISION": "tf32x3" if case["dtype"] == "fp32" else "ieee",
    } | {f"{name}_ptr": None for name in absent}
    types, values, hints = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        name = parameter.name
        if name in known:
            types[name], values[place,] = "constexpr", known[name]
        elif name.endswith("_ptr"):
            types[name] = "*" + TYPES.get(name, case["dtype"])
            hints[place,] = [["tt.divisibility", 16]]
        elif name in ("scale", "share", "factor"):
            types[name] = "fp32"
        else:
            types[name] = "i32"
            if name not in ("heads", "group", "batch") and not case.get("odd"):
                hints[place,] = [["tt.divisibility", 16]]
    return ASTSource(fn=kernel, signature=types, constexprs=values, attrs=hints)


def usage(cubin):
    """Registers of a thread, and bytes that it keeps in memory for want of more."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (registers,), (stack,) = (re.findall(rf" {name}:(\d+)", said) for name in ("REG", "STACK"))
    return int(registers), int(stack)


def main() -> None:
    for case in json.load(sys.stdin):
        for kernel, tile in launches(case):
            target = GPUTarget("cuda", case["target"], 32)
            options = {"num_warps": tile.warps, "num_stages": tile.stages}
            compiled = triton.compile(source(case, kernel, tile), target=target, options=options)
            assert compiled.asm["cubin"]
            allowed = SHARED_BYTES.get(divmod(case["target"], 10), LEAST_SHARED_BYTES)
            row = [case, kernel.__name__, tile, compiled.metadata.shared, allowed]
            print(json.dumps([*row, *usage(compiled.asm["cubin"])]), flush=True)


if __name__ == "__main__":
    main()
