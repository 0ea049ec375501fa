"""Measured best schedules: device name -> (M, N, K, element bytes, batched, by descriptor) -> schedule."""

from __future__ import annotations

Key = tuple[int, int, int, int, bool, bool]

TABLE: dict[str, dict[Key, str]] = {}
