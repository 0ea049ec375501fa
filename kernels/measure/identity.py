"""Identity of a device: its name, sizes and host, without measuring anything."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

import torch

from ..contract import Device
from ..contract.device import spaced
from .environment import canonical_torch_device

MEMORY_STEP = 2**26


def identify(torch_device: str) -> Device:
    """The device behind `cpu` or `cuda:<index>`, without rates: some milliseconds, once per process.

    `probe` gives the same device with its rates, and the same fingerprint. On a CPU `multiprocessors`
    are the cores that this process may use, and `l2_bytes` is the last-level cache. Raises UnknownDevice.
    """
    name = canonical_torch_device(torch_device)
    return _cpu() if name == "cpu" else _cuda(name)


@cache
def _cpu() -> Device:
    model = _processor()
    return Device(
        name=model,
        kind="cpu",
        vendor=next((vendor for vendor in ("AMD", "Intel", "ARM") if vendor.lower() in model.lower()), ""),
        host=_host(),
        multiprocessors=_cores(),
        memory_bytes=_memory_bytes(),
        l2_bytes=_last_level_cache_bytes(),
    )


@cache
def _cuda(name: str) -> Device:
    properties = torch.cuda.get_device_properties(name)
    return Device(
        name=spaced(properties.name),
        kind="cuda",
        vendor="AMD" if torch.version.hip else "NVIDIA",
        host=_host(),
        compute_capability=(properties.major, properties.minor),
        multiprocessors=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        l2_bytes=properties.L2_cache_size,
        shared_bytes_per_multiprocessor=properties.shared_memory_per_multiprocessor,
    )


def _host() -> str:
    return f"{_processor()} x{_cores()}"


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _processor() -> str:
    """The processor's name, for example `AMD EPYC 9654`; the architecture where the system has no name."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return spaced(line.partition(":")[2])
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    """The machine's memory, or the limit of the control group where that is less, in whole steps.

    What a system sets aside differs by some KiB from one start to the next, which would make another host
    of the machine.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    found = min(total, int(text)) if text.isdigit() else total
    return found // MEMORY_STEP * MEMORY_STEP or found


def _last_level_cache_bytes() -> int | None:
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    texts = [size.read_text().strip() for size in sizes]
    return max((int(text[:-1]) * units[text[-1]] for text in texts if text[-1:] in units), default=None)
