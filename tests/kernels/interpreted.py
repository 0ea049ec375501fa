"""Triton's interpreter on a CPU, rounding as GPUs do, and the gate over implementations that need a GPU.

Run as a program, because the interpreter is chosen when kernels are imported: arguments are
implementations; standard input is a JSON list of problems, each with its `operator`; standard output a
line of JSON for each of them and implementation. With `--together` persistent kernels are cut as for a
GPU, into programs that wait for each other: here they run one after another, and wait in vain.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # without it triton 3.9 warns about its next default

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from kernel_selector.kernels import registry
from kernel_selector.kernels.gate import Gate
from kernel_selector.kernels.recurrent import triton_sequence
from kernel_selector.kernels.recurrent.triton_tiles import Limits


def round_to_nearest() -> None:
    """Mend what the interpreter does to bfloat16: it cuts conversions off, and multiplies bit patterns."""
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    cast, dot = builder.cast_impl, builder.create_dot

    def cast_impl(self, source, to):
        if source.dtype.scalar != tl.float32 or to.scalar != tl.bfloat16:
            return cast(self, source, to)
        rounded = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16()
        return handle(rounded.view(torch.int16).numpy().view(np.uint16), tl.bfloat16)

    def wide(tensor):
        return handle((tensor.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self, a, b, *rest):
        return dot(self, *((wide(a), wide(b)) if a.dtype.scalar == tl.bfloat16 else (a, b)), *rest)

    builder.cast_impl, builder.create_dot = cast_impl, create_dot


def main() -> None:
    round_to_nearest()
    torch.set_num_threads(1)
    names = sys.argv[1:]
    if "--together" in names:
        names.remove("--together")
        triton_sequence.PATIENCE = 5
        triton_sequence._limits = lambda _device: Limits(programs=132, shared_bytes=2**17)
    for given in json.load(sys.stdin):
        operator = given.pop("operator")
        problem = registry.operator(operator).problem(given)
        gate = Gate(problem, "cpu")
        for name in names:
            file = importlib.import_module(f"kernel_selector.kernels.{operator}.{name}")
            result = gate.check(file.build(problem))
            print(json.dumps([problem.key, name, result.passed, result.detail]), flush=True)


if __name__ == "__main__":
    main()
