"""Timeline of a step: kernels by name, from torch's profiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

MOST = 40  # kernels that are listed


def timeline(step: Callable[[], Any]) -> dict[str, Any]:
    """Times of one step on a GPU, in milliseconds, and the launches of its kernels.

    The time from the first kernel to the last, the part of it in which any ran, and each kernel's time and
    launches, the longest first.
    """
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in profiler.events()
        if event.device_type != torch.autograd.DeviceType.CPU
    )
    busy, reached = 0.0, 0.0
    times: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    for start, end, name in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
        times[name] += end - start
        launches[name] += 1
    return {
        "span_ms": round((reached - spans[0][0]) / 1e3, 3) if spans else 0.0,
        "busy_ms": round(busy / 1e3, 3),
        "kernels": [
            {"name": name[:160], "ms": round(took / 1e3, 3), "launches": launches[name]}
            for name, took in times.most_common(MOST)
        ],
    }
