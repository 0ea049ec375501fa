"""What this machine's devices are, and how fast: measured in about a second, once per process."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch

from ..contract import Device
from .environment import canonical_torch_device

DTYPES = ("float32", "bfloat16", "float16")
REPEATS = 5  # the fastest counts: a rate is what the device can do
FILL_MS = 4.0  # a matrix product grows until it takes this long
CPU_COPY_BYTES = 2**26
LAUNCHES = 500


def probe(torch_device: str) -> Device:
    """The device behind `cpu` or `cuda:<index>`, with measured rates. Raises UnknownDevice.

    Copy bandwidth counts bytes read and written; matrix rates are of torch's own product under its
    current settings. On a CPU `multiprocessors` are torch's threads and `l2_bytes` is the last-level
    cache. The grid barrier is not measured: torch has none.
    """
    name = canonical_torch_device(torch_device)
    return _cpu(torch.get_num_threads()) if name == "cpu" else _cuda(name)


@cache
def _cpu(threads: int) -> Device:
    model, cores = processor(), len(os.sched_getaffinity(0))
    return Device(
        name=model,
        kind="cpu",
        vendor=next((vendor for vendor in ("AMD", "Intel", "ARM") if vendor.lower() in model.lower()), ""),
        host=f"{model} x{cores}",
        multiprocessors=threads,
        memory_bytes=_memory_bytes(),
        l2_bytes=_last_level_cache_bytes(),
        copy_bytes_per_s=_copy_rate("cpu", CPU_COPY_BYTES),
        matmul_flops_per_s={dtype: _matmul_rate("cpu", dtype, largest=1024) for dtype in DTYPES},
        launch_us=_launch_us("cpu"),
    )


@cache
def _cuda(name: str) -> Device:
    properties = torch.cuda.get_device_properties(name)
    with torch.cuda.device(name):
        copy = _copy_rate(name, min(2**30, properties.total_memory // 16))
        matmul = {dtype: _matmul_rate(name, dtype, largest=8192) for dtype in DTYPES}
        launch = _launch_us(name)
        torch.cuda.empty_cache()
    return Device(
        name=properties.name,
        kind="cuda",
        vendor="AMD" if torch.version.hip else "NVIDIA",
        host=f"{processor()} x{len(os.sched_getaffinity(0))}",
        compute_capability=(properties.major, properties.minor),
        multiprocessors=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        l2_bytes=properties.L2_cache_size,
        shared_bytes_per_multiprocessor=properties.shared_memory_per_multiprocessor,
        copy_bytes_per_s=copy,
        matmul_flops_per_s=matmul,
        launch_us=launch,
    )


def processor() -> str:
    """The processor's name, for example `AMD EPYC 9654`; the architecture where the system has no name."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    """The machine's memory, or the limit of the control group where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return min(total, int(text)) if text.isdigit() else total


def _last_level_cache_bytes() -> int | None:
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    texts = [size.read_text().strip() for size in sizes]
    return max((int(text[:-1]) * units[text[-1]] for text in texts if text[-1:] in units), default=None)


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
    """The rate of the first square product that takes FILL_MS, or of the largest."""
    size, rate = 128, 0.0
    while size <= largest:
        # random numbers: zeros draw less power and run faster than real data
        a, b = (torch.randn(size, size, device=torch_device).to(getattr(torch, dtype)) for _ in range(2))
        seconds = _fastest_s(lambda a=a, b=b: a @ b, torch_device)  # type: ignore[misc]
        rate = max(rate, 2 * size**3 / seconds)
        if seconds * 1e3 > FILL_MS:
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
