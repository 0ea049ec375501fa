"""Plans and frontiers of a model by its parts: from a device and memory limits to a `Plan` or to points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_selector.kernels.contract import Device, UnknownDevice
from kernel_selector.kernels.contract.errors import shorten

from ..cost_model.features.roofline import missing_rates
from ..errors import InvalidRequest, NothingFits
from ..selection.selector import shared_selector
from ..text.units import format_bytes, parse_bytes
from ..workloads.model import Model, parse_batch
from .fits import Fit, fit_of, fit_of_plan
from .options import Prices
from .pareto import Point, frontier
from .plan import Plan
from .planner import Planner
from .training_setup import Training

if TYPE_CHECKING:
    from kernel_selector.db import Database

    from ..selection.selector import Selector

TRIES = 4  # of plans that are measured
POINTS = 12  # of a frontier


def planner_of(
    model: Model,
    device: object,
    training: Training | None,
    database: str | Path | Database | None,
    shipped: bool | None = None,
) -> Planner:
    """The planner of a model by its parts on a device, with the prices that a database and what ships give
    its layers; `shipped` is as of `Selector`.

    Raises InvalidRequest for what is no Training, UnknownDevice, and the errors of the database.
    """
    if not isinstance(training, Training | None):
        raise InvalidRequest(
            f"training={shorten(training)}: expected a Training, which is selector.Training."
        )
    return Planner(prices_on(device, training or Training(), database, shipped), model)


def plan(
    planner: Planner,
    memory_limit: str | int | None,
    batch: int | str,
    measure: Callable[[Plan], int] | None = None,
) -> Plan:
    """The plan within a limit, the device's memory where None; `measure` is as of `selector.plan`."""
    limit = _limit(memory_limit, planner.device)
    parse_batch(batch)
    return planner.plan(limit, batch) if measure is None else _measured(planner, limit, batch, measure)


def fits(planner: Planner, batch: int, reserve: object) -> Fit:
    """Fit of a batch of a model in the planner's device, with a reserve left free."""
    if parse_batch(batch) is None:
        raise InvalidRequest(
            "batch='auto': expected a whole number from 1; `selector.plan` finds the largest."
        )
    return fit_of(planner, batch, reserve)


def fits_elsewhere(
    found: Plan,
    device: object,
    reserve: object,
    database: str | Path | Database | None,
    shipped: bool | None = None,
) -> Fit:
    """Fit of a plan in a device, which may be another one than it was made for."""
    selector = shared_selector(database, shipped=shipped)
    planned_for = selector.device(found.device)
    return fit_of_plan(
        found, planned_for, planned_for if device is None else selector.device(device), reserve
    )


def pareto(
    planner: Planner, memory_limit: str | int | None, memory_limits: Sequence[str | int] = ()
) -> list[Point]:
    """The frontier of points at the limits, or at POINTS of them up to `memory_limit`."""
    if isinstance(memory_limits, str):
        raise InvalidRequest(f"memory_limits={shorten(memory_limits)}: expected a list of limits.")
    most = _limit(memory_limit, planner.device)
    least = math.ceil(planner.least_bytes() / (1 - planner.training.margin))
    limits = [parse_bytes(one, "memory_limits") for one in memory_limits] or _spread(least, most)
    return frontier(planner, limits)


def prices_on(
    device: object,
    training: Training,
    database: str | Path | Database | None,
    shipped: bool | None = None,
) -> Prices:
    """Prices of layers on a device. Raises UnknownDevice and the errors of the database."""
    selector = shared_selector(database, shipped=shipped)
    return Prices(selector, _device(selector, device), training)


def _device(selector: Selector, asked: object) -> Device:
    """The device that `choose` finds, with the rates that were measured on one of its kind where it has none.

    Raises UnknownDevice and InvalidRequest.
    """
    found = selector.device(asked)
    if missing_rates(found):
        with suppress(UnknownDevice):  # what is missing is said where it is needed
            return selector.device(found.key)
    return found


def _limit(memory_limit: str | int | None, device: Device) -> int:
    if memory_limit is not None:
        return parse_bytes(memory_limit, "memory_limit")
    if device.memory_bytes is None:
        raise InvalidRequest(f"memory_limit=None: the memory of {device.name} is not known, so give a limit.")
    return device.memory_bytes


def _measured(planner: Planner, limit: int, batch: int | str, measure: Callable[[Plan], int]) -> Plan:
    """Plans within less and less, until a real step stays within the limit."""
    reserve = 1.0
    seen: list[str] = []
    for _ in range(TRIES):
        found = planner.plan(limit, batch, reserve=reserve)
        peak = measure(found)
        if peak <= limit:
            return replace(found, measured_peak_bytes=peak)
        kept = max(found.memory["activations"], 1)
        reserve *= 1 + max(peak - found.peak_bytes, peak - limit) / kept
        seen.append(f"batch {found.batch}: {format_bytes(peak)}")
    raise NothingFits(
        f"No plan of {planner.model.name} stayed within {format_bytes(limit)} when it was run "
        f"({', '.join(seen)}): lower the limit by the difference, or give a smaller batch."
    )


def _spread(least: int, most: int) -> list[int]:
    """Limits from the least to the most, equally far apart in ratio."""
    step = (most / least) ** (1 / (POINTS - 1)) if most > least else 1.0
    return sorted({round(least * step**index) for index in range(POINTS - 1)} | {most})
