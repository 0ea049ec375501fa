"""Sampling ranges of an operator's random problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Space:
    """Sizes from low to high, log-uniform; values with equal chances.

    `sometimes` are sizes that are drawn for every fourth problem and keep their default otherwise.
    `max_flops` caps the operations of one pass in the problem's mode, and `max_bytes` the bytes that it
    moves, so that all candidates of one problem, gate included, are measured within a few seconds.
    """

    sizes: Mapping[str, tuple[int, int]]
    values: Mapping[str, Sequence[str]]
    sometimes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    max_flops: float
    max_bytes: float = 2e10
