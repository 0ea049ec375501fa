"""Launches of Triton kernels that cost the host little from the second one on.

Triton looks at every argument, builds a key of texts, asks the driver about every pointer and runs hooks
before each launch: 12 to 15 us of an H200's host for a kernel of four arguments, where this takes 8 to 10.
Here a launch is known by what Triton specialises a kernel on, and by more where that is cheaper to see;
the compiled kernel behind it is then started with addresses. What is not known, and every launch while
a profiler's hooks are there, takes Triton's own way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from typing import Any, NamedTuple

import torch
from torch import Tensor

Grid = tuple[int, ...]

# of Triton, major and minor, whose compiled kernels start as here; kernels of others take Triton's own way
KNOWN_VERSIONS = ("3.6",)
INT32 = range(-(2**31), 2**31)
# what ptxas leaves a thread where it gives up on sharing registers out, and spills all the rest: 880 to 3,000
# registers; small kernels in their right number of registers spill two or so as well
GIVEN_UP_REGISTERS, GIVEN_UP_SPILLS = 32, 100


class _Ready(NamedTuple):
    """A compiled kernel, and what of its launch stays the same."""

    kernel: Any  # kept, because its id stands for it in keys
    run: Any
    function: int
    metadata: Any
    constants: tuple[Any, ...]  # the values of the parameters behind the arguments
    hooks: tuple[list[Any], ...]  # called around launches, by profilers


class _Tracing(local):
    on = False


_ready: dict[tuple[Any, ...], _Ready] = {}
_tracing = _Tracing()


@contextmanager
def traced_launches() -> Iterator[None]:
    """Launches of this thread as nodes of the graph that torch traces; as ever where it traces none."""
    before, _tracing.on = _tracing.on, True
    try:
        yield
    finally:
        _tracing.on = before


def launch(kernel: Any, grid: Grid, *arguments: Any, **constants: Any) -> None:
    """`kernel[grid](*arguments, **constants)` on the device of the first tensor, and its current stream.

    Arguments that may differ between launches come by place; `tl.constexpr` ones and options by name.
    Does nothing where the grid has no programs.
    """
    if 0 in grid:
        return
    if _tracing.on and torch._library.triton.is_wrap_triton_enabled():
        torch.library.wrap_triton(kernel)[grid](*arguments, **constants)
        return
    device = _device(arguments)
    if device < 0 or device == torch.cuda.current_device():
        _launch(kernel, grid, device, arguments, constants)
    else:
        with torch.cuda.device(device):
            _launch(kernel, grid, device, arguments, constants)


def _launch(
    kernel: Any, grid: Grid, device: int, arguments: tuple[Any, ...], constants: dict[str, Any]
) -> None:
    passed, key = _seen(arguments)
    whole = (id(kernel), device, key, tuple(constants.items()))
    ready = _ready.get(whole)
    if ready is None or any(ready.hooks):
        compiled = kernel[grid](*arguments, **constants)
        _refuse_given_up(kernel, compiled)
        if ready is None and None not in key and _known(kernel, compiled):
            _ready[whole] = _of(kernel, compiled, len(arguments), constants)
        return
    x, y, z = (*grid, 1, 1)[:3]
    stream = torch._C._cuda_getCurrentRawStream(device)
    ready.run(
        x, y, z, stream, ready.function, ready.metadata, None, None, None, *passed, *ready.constants
    )  # fmt: skip


def _refuse_given_up(kernel: Any, compiled: Any) -> None:
    """Raises RuntimeError for a kernel on which ptxas gave up: one such was seen to compute wrong results."""
    spilled = getattr(compiled, "n_spills", None) or 0
    if spilled >= GIVEN_UP_SPILLS and compiled.n_regs <= GIVEN_UP_REGISTERS:
        raise RuntimeError(
            f"{kernel.__name__}: ptxas gave up on this kernel, left {compiled.n_regs} registers a thread and "
            f"spilled {spilled}; such kernels were seen to compute wrong results. Choose another "
            "implementation for this problem."
        )


def _device(arguments: tuple[Any, ...]) -> int:
    """The number of the first tensor's GPU; -1 for CPUs, where Triton's interpreter runs."""
    for value in arguments:
        if isinstance(value, Tensor):
            return value.get_device()
    return -1


def _seen(arguments: tuple[Any, ...]) -> tuple[list[Any], tuple[Any, ...]]:
    """What is passed for the arguments, and what compiled kernels depend on; None for what is not known.

    Addresses and numbers count by whether 16 divides them, numbers also by whether they are 1 and need 64
    bits. The device is part of it, so that a tensor of another one reaches Triton, which refuses it.
    """
    passed: list[Any] = []
    key: list[Any] = []
    for value in arguments:
        if isinstance(value, Tensor):
            address = value.data_ptr()
            passed.append(address)
            key.append((value.dtype, address % 16 == 0, value.get_device()))
            continue
        passed.append(value)
        kind = type(value)
        if kind is int:
            key.append((value % 16 == 0, value == 1, value in INT32, value < 2**63))
        elif kind is float or kind is bool or value is None:
            key.append(kind)
        else:
            key.append(_of_descriptor(value))
    return passed, tuple(key)


def _of_descriptor(value: Any) -> Any:
    """The same of a tensor descriptor; None for anything else."""
    base = getattr(value, "base", None)
    if not isinstance(base, Tensor):
        return None
    return base.dtype, tuple(value.block_shape), base.get_device(), getattr(value, "padding", None)


def _known(kernel: Any, compiled: Any) -> bool:
    """Whether this is a compiled kernel of a Triton whose launches are as those here."""
    import triton  # type: ignore[import-untyped]

    if not isinstance(kernel, triton.JITFunction) or compiled is None:  # the interpreter's, or not compiled
        return False
    return triton.__version__.rpartition(".")[0] in KNOWN_VERSIONS and not kernel.pre_run_hooks


def _of(kernel: Any, compiled: Any, given: int, constants: dict[str, Any]) -> _Ready:
    import triton

    by_place = [one.name for one in kernel.params[:given] if one.is_constexpr]
    if by_place:
        raise TypeError(f"{kernel.__name__}: {by_place} are constants of the kernel: give them by name")
    values = tuple(constants.get(one.name, one.default) for one in kernel.params[given:])
    chains = (triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook)
    return _Ready(
        kernel,
        compiled.run,
        compiled.function,
        compiled.packed_metadata,
        values,
        tuple(chain.calls for chain in chains),
    )
