"""Measured rates of this machine's devices: a second or less, once per process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch

from ..contract import Device
from .environment import canonical_torch_device
from .identity import identify

DTYPES = ("float32", "bfloat16", "float16")
REPEATS = 5  # the fastest counts: a rate is what the device can do
FILL_MS = 4.0  # a matrix product grows until it takes this long,
GROWTH = 1.5  # and its rate is no longer so many times that of smaller ones
CPU_COPY_BYTES = 2**26
LAUNCHES = 500


def probe(torch_device: str) -> Device:
    """The device that `identify` names, with measured rates. Raises UnknownDevice.

    Copy bandwidth counts bytes read and written; matrix rates are of torch's own product under its
    current settings, on a CPU with its current number of threads. The grid barrier is not measured:
    torch has none.
    """
    name = canonical_torch_device(torch_device)
    return _cpu(torch.get_num_threads()) if name == "cpu" else _cuda(name)


@cache
def _cpu(_threads: int) -> Device:
    return replace(
        identify("cpu"),
        copy_bytes_per_s=_copy_rate("cpu", CPU_COPY_BYTES),
        matmul_flops_per_s={dtype: _matmul_rate("cpu", dtype, largest=1024) for dtype in DTYPES},
        launch_us=_launch_us("cpu"),
    )


@cache
def _cuda(name: str) -> Device:
    device = identify(name)
    with torch.cuda.device(name):
        probed = replace(
            device,
            copy_bytes_per_s=_copy_rate(name, min(2**30, (device.memory_bytes or 0) // 16)),
            matmul_flops_per_s={dtype: _matmul_rate(name, dtype, largest=8192) for dtype in DTYPES},
            launch_us=_launch_us(name),
        )
        torch.cuda.empty_cache()
    return probed


def _fastest_s(run: Callable[[], object], torch_device: str) -> float:
    """Seconds of the fastest of REPEATS runs, after one that is not counted."""
    run()
    times, event = [], partial(torch.cuda.Event, enable_timing=True)
    for _ in range(REPEATS):
        if torch_device == "cpu":
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        else:
            before, after = event(), event()
            before.record()
            run()
            after.record()
            after.synchronize()
            times.append(before.elapsed_time(after) / 1e3)
    return min(times)


def _copy_rate(torch_device: str, size: int) -> float:
    source = torch.ones(size, dtype=torch.uint8, device=torch_device)
    target = torch.empty_like(source)
    return 2 * size / _fastest_s(lambda: target.copy_(source), torch_device)


def _matmul_rate(torch_device: str, dtype: str, *, largest: int) -> float:
    """The highest rate of square products, up to one that takes FILL_MS by what it computes, or the largest.

    On a busy host the smallest take as long, by waiting for a core: then larger ones have far higher rates.
    """
    size, rate = 128, 0.0
    generator = torch.Generator(torch_device).manual_seed(
        0
    )  # of its own: who asks may count on the next draws
    while size <= largest:
        # random numbers: zeros draw less power and run faster than real data
        a, b = (
            torch.randn(size, size, generator=generator, device=torch_device).to(getattr(torch, dtype))
            for _ in range(2)
        )
        seconds = _fastest_s(lambda a=a, b=b: a @ b, torch_device)  # type: ignore[misc]
        found = 2 * size**3 / seconds
        grows, rate = found > GROWTH * rate, max(rate, found)
        if seconds * 1e3 > FILL_MS and not grows:
            break
        size *= 2
    return rate


def _launch_us(torch_device: str) -> float:
    """Time of one operation on one element, in a long row of them: the host's cost of a launch."""
    element = torch.ones(1, device=torch_device)

    def row() -> None:
        for _ in range(LAUNCHES):
            element.add_(1)

    return _fastest_s(row, torch_device) / LAUNCHES * 1e6
