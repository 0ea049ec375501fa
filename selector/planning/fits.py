"""Fit of a model's training in the memory of a device, and what its peak is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device
from kernel_selector.kernels.contract.errors import shorten

from ..errors import InvalidRequest, NothingFits
from ..text.units import format_bytes, parse_bytes
from .layer_costs import BYTES_ELSEWHERE
from .plan import Layers, Plan
from .planner import Planner, library_bytes


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Answer to whether a training step fits into a device, true or false as itself.

    `peak_bytes` is that of the fastest plan within the memory less the reserve, else of the plan that takes
    least; `memory` has it by kind. `own_peak_bytes` is what the framework's own implementations take at the
    same batch, None where they do not fit; 0 where a plan was given. `reason` says why it does not fit.
    """

    fits: bool
    model: str
    device: str
    batch: int
    memory_bytes: int
    reserve_bytes: int
    peak_bytes: int
    memory: Mapping[str, int]
    own_peak_bytes: int | None = None
    reason: str = ""
    caveats: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.fits

    @property
    def headline(self) -> str:
        """The answer in one line."""
        free = f"{format_bytes(self.memory_bytes)} less {format_bytes(self.reserve_bytes)}"
        peak = f"batch {self.batch} takes {format_bytes(self.peak_bytes)} of {free}"
        if self.fits:
            return f"yes: {self.model} fits into {self.device}, {peak}"
        return f"no: {self.model} does not fit into {self.device}, {peak}. {self.reason}"

    def explain(self) -> str:
        """The whole answer as plain text."""
        own = self.own_peak_bytes
        lines = [
            self.headline,
            "memory: " + ", ".join(f"{name} {format_bytes(size)}" for name, size in self.memory.items()),
        ]
        if own != 0:
            takes = "do not fit" if own is None else f"take {format_bytes(own)}"
            lines.append(f"the framework's own implementations {takes}")
        return "\n".join([*lines, *(f"note  {caveat}" for caveat in self.caveats)])

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready data."""
        return asdict(self)


def reserved(reserve: object, memory_bytes: int) -> int:
    """Bytes to leave free, of a share ("5%", 0.05) or of bytes ("2GiB"). Raises InvalidRequest."""
    share = None
    if isinstance(reserve, str) and reserve.strip().endswith("%"):
        try:
            share = float(reserve.strip()[:-1]) / 100
        except ValueError:
            share = -1.0
    elif isinstance(reserve, float):
        share = reserve
    if share is None and isinstance(reserve, str | int) and not isinstance(reserve, bool):
        bytes_ = 0 if reserve == 0 else parse_bytes(reserve, "reserve")
        share = bytes_ / memory_bytes
    if share is None or not 0 <= share < 1:
        raise InvalidRequest(
            f'reserve={shorten(reserve)}: expected a share such as "5%" or 0.05, or bytes such as "2GiB", '
            f"less than the {format_bytes(memory_bytes)} of the device."
        )
    return round(share * memory_bytes)


def fit_of(planner: Planner, batch: int, reserve: object) -> Fit:
    """Fit of a model in its planner's device. Raises InvalidRequest, and the errors of planning."""
    device = planner.device
    memory = memory_of(device)
    left = reserved(reserve, memory)
    planner = planner.leaving(left / memory)
    try:
        plan, reason = planner.plan(memory, batch), ""
    except NothingFits as error:
        plan, reason = planner.least(memory, batch), str(error)
    return Fit(
        fits=not reason,
        model=plan.model,
        device=device.name,
        batch=plan.batch,
        memory_bytes=memory,
        reserve_bytes=left,
        peak_bytes=plan.peak_bytes,
        memory=plan.memory,
        own_peak_bytes=None if plan.default is None else plan.default.peak_bytes,
        reason=reason,
        caveats=plan.caveats,
    )


def fit_of_plan(plan: Plan, planned_for: Device, device: Device, reserve: object) -> Fit:
    """Fit of a plan for one device in another one, where all of it has to run."""
    memory = memory_of(device)
    left = reserved(reserve, memory)
    kinds = dict(plan.memory)
    if device.key != planned_for.key:
        kinds["workspace"] += library_bytes(device) - library_bytes(planned_for)
        for kind in ("activations", "workspace"):
            kinds[kind] = round(kinds[kind] * BYTES_ELSEWHERE)
    peak = sum(kinds.values())
    reasons = list(_refusals(plan.layers, device))
    if peak > memory - left:
        reasons.append(f"It takes {format_bytes(peak - memory + left)} more than that.")
    return Fit(
        fits=not reasons,
        model=plan.model,
        device=device.name,
        batch=plan.batch,
        memory_bytes=memory,
        reserve_bytes=left,
        peak_bytes=peak,
        memory=kinds,
        own_peak_bytes=0,
        reason=" ".join(reasons),
        caveats=plan.caveats,
    )


def _refusals(layers: tuple[Layers, ...], device: Device) -> Iterator[str]:
    for one in layers:
        problem = registry.operator(one.operator).problem(one.hyperparameters)
        refused = registry.implementation(one.operator, one.implementation).unsupported(problem, device)
        if refused:
            yield f"{one.operator}.{one.implementation} refuses {device.name}: {refused}."


def memory_of(device: Device) -> int:
    """The memory of a device. Raises InvalidRequest where it is not known."""
    if device.memory_bytes is None:
        raise InvalidRequest(
            f"The memory of {device.name} is not known: ask with a Device that has memory_bytes."
        )
    return device.memory_bytes
