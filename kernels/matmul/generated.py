"""Generated text made into Triton kernels, once a process; Triton's own cache keeps the machine code.

Triton is imported when a kernel is needed: implementations are listed where it is not installed.
"""

from __future__ import annotations

import hashlib
import linecache
from functools import cache
from typing import Any

from .epilogue import Step
from .schedule import Schedule
from .source import Form, combine_source, matmul_source


@cache
def matmul_kernel(schedule: Schedule, form: Form) -> Any:
    """The kernel of a schedule."""
    return kernel(matmul_source(schedule, form), "matmul_kernel")


@cache
def combine_kernel(steps: tuple[Step, ...], batched: bool) -> Any:
    """The kernel that adds up the parts of a split depth."""
    return kernel(combine_source(steps, batched), "combine_kernel")


@cache
def kernel(source: str, name: str) -> Any:
    """The function `name` of a source text, whose names are Triton's and those of `functions`."""
    import triton  # type: ignore[import-untyped]
    import triton.language as tl  # type: ignore[import-untyped]

    from . import functions

    place = f"<generated {name} {hashlib.sha256(source.encode()).hexdigest()[:12]}>"
    # Triton reads a kernel's source again, by its file's name; None as its time says that it is no file
    linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
    names: dict[str, Any] = {
        "__name__": f"{__name__}.{name}",
        "triton": triton,
        "tl": tl,
        **{word: getattr(functions, word) for word in ("kept", "relu", "gelu", "gelu_tanh", "silu")},
    }
    exec(compile(source, place, "exec"), names)
    return names[name]
