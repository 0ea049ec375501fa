"""Compiles Triton's kernels of recurrent layers for GPUs that are not there.

Standard input is a JSON list of cases; standard output a line of JSON for each: the case, the bytes of
shared memory that a program takes, and the bytes that a tile was allowed.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # without it triton 3.9 warns about its next default

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernel_selector.kernels.recurrent.layer import GRU, LSTM, RNN_RELU, RNN_TANH
from kernel_selector.kernels.recurrent.triton.fused import BLOCK
from kernel_selector.kernels.recurrent.triton.persistent import (
    persistent_backward_kernel,
    persistent_forward_kernel,
)
from kernel_selector.kernels.recurrent.triton.pointwise import fused_backward_kernel, fused_forward_kernel
from kernel_selector.kernels.recurrent.triton.sequence import _size
from kernel_selector.kernels.recurrent.triton.tiles import STAGES, WARPS, Limits, best_tile

CELLS = {cell.name: cell for cell in (LSTM, GRU, RNN_TANH, RNN_RELU)}
LIMITS = {80: Limits(108, 163 * 1024), 86: Limits(84, 99 * 1024), 90: Limits(132, 227 * 1024)}
KERNELS = {
    "persistent": (persistent_forward_kernel, persistent_backward_kernel),
    "fused": (fused_forward_kernel, fused_backward_kernel),
}
TILE = ("BLOCK_B", "BLOCK_H", "BLOCK_K", "SPLIT", "RESIDENT")
WIDE = {"c_ptr", "dh_ptr", "dc_ptr"}
WHOLE = {"length_ptr", "counter_ptr"}
LSTM_ONLY = {"cells_ptr", "c_ptr", "dc_ptr"}
ELEMENT = {"fp32": 4, "fp16": 2, "bf16": 2}


def constants(case, cell, backward):
    """The kernel's constants, and the tile that they come from."""
    if case["kernel"] == "fused":
        return {"CELL": cell.name, "MINOR": case.get("minor", False), "BLOCK": BLOCK}
    shape = (case["hidden"], case["batch"], 1)
    tile = best_tile(_size(cell, shape, ELEMENT[case["dtype"]], backward), LIMITS[case["target"]])
    found = {"CELL": cell.name, "H": case["hidden"], "G": cell.gates, "KEEP": True}
    return found | {name: getattr(tile, name.lower()) for name in TILE}


def source(case, backward):
    """A kernel with the types of its arguments."""
    cell, kernel = CELLS[case["cell"]], KERNELS[case["kernel"]][backward]
    known = constants(case, cell, backward)
    absent = (LSTM_ONLY if cell is not LSTM else set()) | (set() if case.get("lengths") else {"length_ptr"})
    types, values, hints = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        name = parameter.name
        if name in known or name in absent:
            types[name], values[place,] = "constexpr", known.get(name)
        elif name.endswith("_ptr"):
            types[name] = "*" + ("fp32" if name in WIDE else "i32" if name in WHOLE else case["dtype"])
            hints[place,] = [["tt.divisibility", 16]]
        else:
            types[name] = "i32"
    return ASTSource(fn=kernel, signature=types, constexprs=values, attrs=hints)


def main() -> None:
    for case in json.load(sys.stdin):
        for backward in (False, True):
            target = GPUTarget("cuda", case["target"], 32)
            options = {"num_warps": WARPS, "num_stages": STAGES}
            compiled = triton.compile(source(case, backward), target=target, options=options)
            assert compiled.asm["cubin"]
            print(json.dumps([case, compiled.metadata.shared, LIMITS[case["target"]].shared_bytes]))


if __name__ == "__main__":
    main()
