"""Conformal error factors of a cost model, in one table for many rows."""

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
    """Factors of low and high time, both noises, and factors of low, high and safe memory.

    `table` has them by situation and implementation, NaN in the last of both, which stand for one that the
    model does not know.
    """

    situations: Mapping[str, int]
    table: NDArray[np.float64]  # [FACTORS, situations + 1, implementations + 1]

    @classmethod
    def of(cls, errors: Mapping[str, Any], implementations: Sequence[str]) -> Self:
        """The factors of a manifest's `errors`. Raises KeyError, TypeError or ValueError."""
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
        """The position of a situation in the table, -1 for an unknown one."""
        return self.situations.get(situation, -1)


def situation(mode: str, device: Device) -> str:
    """The kind of device and the mode of a problem, by which errors of bytes are kept apart."""
    return f"{device.kind} {mode}"


def _factors(found: Mapping[str, Any], where: str) -> list[float]:
    memory = found["memory"][where]
    noises = found["time_noise"], found["memory_noise"]
    factors = list(map(float, (*found["time"], *noises, *memory["interval"], memory["safe"])))
    if len(factors) != FACTORS or not all(0 <= factor < math.inf for factor in factors):
        raise ValueError(f"error factors {factors}: expected {FACTORS} finite numbers that are not negative")
    return factors
