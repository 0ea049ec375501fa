"""The ways to compute each part on a device, with their prices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, UnsupportedProblem

from ..errors import NoMeasurements
from ..physics import missing_rates
from .figures import Figures, Measurements, counted
from .parts import Part

if TYPE_CHECKING:
    from ..engine import Selector


@dataclass(frozen=True, kw_only=True)
class Option:
    """One layer of a part by one implementation.

    `held_bytes` stay from forward to backward, counted once with the layer that makes them;
    `transient_bytes` are what backward takes beside them, the gradient of the output included. A
    `recomputed` layer is run again in backward, with its whole block: it holds nothing until then.
    """

    implementation: str
    default: bool
    recomputed: bool
    device_ms: float
    host_ms: float
    held_bytes: int
    transient_bytes: int
    source: str
    remark: str

    def reserving(self, factor: float) -> Option:
        """The same, holding so many times the bytes."""
        return replace(self, held_bytes=round(self.held_bytes * factor))


class Prices:
    """Prices on one device, from what a selector's database holds now."""

    def __init__(self, selector: Selector, device: Device) -> None:
        self.device = device
        self.excluded: dict[tuple[str, str], str] = {}
        self._selector = selector
        self._measurements: dict[str, Measurements] = {}
        self._options: dict[Part, tuple[Option, ...]] = {}

    @property
    def outdated(self) -> set[str]:
        """Implementations of which there are records of earlier versions alone, as operator.name."""
        return {
            f"{operator}.{name}" for operator, found in self._measurements.items() for name in found.outdated
        }

    def options(self, part: Part) -> tuple[Option, ...]:
        """Every implementation that computes the part here, first kept, then recomputed with its block.

        Raises UnsupportedProblem where there is none, and NoMeasurements where nothing is known of any.
        """
        if part not in self._options:
            kept = self._kept(part)
            again = tuple(_recomputed(option, part, self) for option in kept) if part.per_block else ()
            self._options[part] = (*kept, *again)
        return self._options[part]

    def _kept(self, part: Part) -> tuple[Option, ...]:
        problem = part.problem
        operator = registry.operator(problem.operator)
        accepted, refused = registry.candidates(problem, self.device)
        failed, _ = self._selector.evidence(operator.name, self.device.key).failures(
            problem, self.device, operator.default
        )
        for name, reason in {**refused, **failed}.items():
            self.excluded.setdefault((part.name, name), reason)
        usable = [item.name for item in accepted if item.name not in failed]
        if not usable:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in {**refused, **failed}.items())
            raise UnsupportedProblem(f"Nothing computes {problem} on {self.device.name}: {reasons}.")
        return tuple(
            _option(part, name, figures, default=name == operator.default)
            for name in usable
            if (figures := self._figures(problem, name, last_resort=operator.default)) is not None
        ) or (_option(part, usable[0], self._counted(problem, usable[0]), default=False),)

    def _figures(self, problem: Problem, name: str, last_resort: str) -> Figures | None:
        series = self._of(problem.operator).series.get(name)
        found = series.figures(problem) if series else None
        if found is None and name == last_resort:
            return self._counted(problem, name)
        return found

    def _counted(self, problem: Problem, name: str) -> Figures:
        missing = missing_rates(self.device)
        if missing:
            raise NoMeasurements(
                f"Nothing is known of {problem.operator} on {self.device.name}: no measurements, and "
                f"{missing}. Measure there: `selector profile {problem.operator} --count 60`."
            )
        return counted(problem, name, self.device)

    def _of(self, operator: str) -> Measurements:
        if operator not in self._measurements:
            from kernel_selector.db import records

            versions = {name: item.version for name, item in registry.implementations(operator).items()}
            with self._selector.database.read() as connection:
                found = records.find(connection, operator=operator, device_key=self.device.key)
                self._measurements[operator] = Measurements(found, self.device, versions)
        return self._measurements[operator]


def _option(part: Part, name: str, figures: Figures, *, default: bool) -> Option:
    held = figures.held_bytes
    if not part.output_kept:
        held = max(held - part.output_bytes, 0)
    if not part.input_kept:
        held += figures.kept_argument_bytes
    return Option(
        implementation=name,
        default=default,
        recomputed=False,
        device_ms=figures.device_ms,
        host_ms=figures.host_ms,
        held_bytes=held,
        transient_bytes=max(figures.peak_bytes - figures.held_bytes, 0) + part.output_bytes,
        source=figures.source,
        remark=figures.remark,
    )


def _recomputed(option: Option, part: Part, prices: Prices) -> Option:
    figures = prices._figures(part.problem, option.implementation, option.implementation)
    assert figures is not None
    share = figures.forward_ms / figures.device_ms if figures.device_ms else 1 / 3
    return replace(
        option,
        recomputed=True,
        device_ms=option.device_ms * (1 + share),
        host_ms=option.host_ms * (1 + share),
    )
