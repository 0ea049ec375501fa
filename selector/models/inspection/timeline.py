"""Time intervals between marks, on GPU and CPU."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import torch


class Timeline:
    """Intervals between marks, attributed to the owner that the earlier mark names."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str, Any]] = []

    def mark(self, owner: str) -> None:
        """Start an interval of `owner`."""
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append((owner, event))
        else:
            self._marks.append((owner, time.perf_counter()))

    def milliseconds(self) -> dict[str, float]:
        """Milliseconds by owner. Synchronizes the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        found: dict[str, float] = defaultdict(float)
        for (owner, start), (_, end) in zip(self._marks, self._marks[1:], strict=False):
            found[owner] += start.elapsed_time(end) if self._device.type == "cuda" else (end - start) * 1e3
        return found
