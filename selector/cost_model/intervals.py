"""How far a cost model's predictions are off, as factors, to be looked up for many rows at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kernel_selector.kernels.contract import Device

FACTORS = 7


@dataclass(frozen=True)
class ErrorFactors:
    """Those of low and high time, both noises, and those of low, high and safe memory.

    `table` has them by situation and implementation, NaN in the last of both, which stand for one that the
    model does not know.
    """

    situations: Mapping[str, int]
    table: NDArray[np.float64]  # [FACTORS, situations + 1, implementations + 1]

    @classmethod
    def of(cls, errors: Mapping[str, Any], implementations: Sequence[str]) -> Self:
        """Of a manifest's `errors`. Fails when something is missing or no number."""
        found = {
            (where, name): _factors(errors[name], where)
            for name in implementations
            for where in errors[name]["memory"]
        }
        situations = {where: place for place, where in enumerate(sorted({where for where, _ in found}))}
        table = np.full((FACTORS, len(situations) + 1, len(implementations) + 1), math.nan)
        for (where, name), factors in found.items():
            table[:, situations[where], implementations.index(name)] = factors
        return cls(situations, table)

    def place(self, situation: str) -> int:
        """Where a situation is in the table."""
        return self.situations.get(situation, -1)


def situation(mode: str, device: Device) -> str:
    """What decides most about how an implementation works: the kind of device and the problem's mode."""
    return f"{device.kind} {mode}"


def _factors(found: Mapping[str, Any], where: str) -> list[float]:
    memory = found["memory"][where]
    noises = found["time_noise"], found["memory_noise"]
    return list(map(float, (*found["time"], *noises, *memory["interval"], memory["safe"])))
