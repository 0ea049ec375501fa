"""The ways to compute each part on a device, with their prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, UnsupportedProblem

from ..cost_model.features.roofline import missing_rates
from ..errors import NoMeasurements
from ..selection.evidence import Evidence
from ..selection.joint_evidence import JointEvidence
from ..selection.selector import Selector
from ..workloads.model import Part
from .layer_costs import Figures, Measurements, counted
from .pace import in_a_model
from .training_setup import Training

MEASURED = ("exact", "series")  # sources of figures


@dataclass(frozen=True, kw_only=True)
class Option:
    """One layer of a part by one implementation, in a model that keeps its device busy.

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

    @property
    def figures(self) -> tuple[float, ...]:
        """All that a plan looks at; less of each is better."""
        return self.device_ms, self.host_ms, self.held_bytes, self.transient_bytes

    def reserving(self, factor: float) -> Option:
        """The same, holding so many times the bytes."""
        return replace(self, held_bytes=round(self.held_bytes * factor))


def _comparable(found: dict[str, Figures], own: Figures | None) -> dict[str, Figures]:
    """Without figures that were scaled, where the framework's `own` were measured: they would win by error.

    So they would where the framework's own are not wanted, unless there are no others.
    """
    if own is None or own.source not in MEASURED:
        return found
    return {name: figures for name, figures in found.items() if figures.source in MEASURED} or found


def undominated(options: Sequence[Option]) -> list[Option]:
    """Without those that another is at least as good as in everything, the first of equals."""
    found: list[Option] = []
    for option in sorted(options, key=lambda one: (*one.figures, not one.default, one.implementation)):
        if not any(
            other.recomputed == option.recomputed
            and all(mine <= theirs for mine, theirs in zip(other.figures, option.figures, strict=True))
            for other in found
        ):
            found.append(option)
    return found


class Prices:
    """Prices on one device, from the measurements that a selector knows now.

    `shipped` has the operators of which all measurements come with this package, `joint` those of which some
    do.
    """

    def __init__(self, selector: Selector, device: Device, training: Training) -> None:
        self.device, self.snapshot = device, selector.snapshot
        self.shipped: set[str] = set()
        self.joint: set[str] = set()
        self.training = training
        self._selector = selector
        self._measurements: dict[str, Measurements] = {}
        self._options: dict[Part, tuple[Option, ...]] = {}

    @property
    def trouble(self) -> str:
        """Why the measurements that come with this package cannot be used, "" where they can."""
        return self._selector.unusable

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
            again = [_recomputed(option, share) for option, share in kept] if part.per_block else []
            self._options[part] = (*(option for option, _ in kept), *again)
        return self._options[part]

    def _kept(self, part: Part) -> list[tuple[Option, float]]:
        """The options that keep what they need, each with the share of its time that is forward."""
        problem = part.problem
        operator = registry.operator(problem.operator)
        accepted, refused = registry.candidates(problem, self.device)
        failed = self._failures(problem, operator.default)
        excluded = {
            item.name: "excluded" for item in accepted if self.training.excludes(operator.name, item.name)
        }
        usable = [item.name for item in accepted if item.name not in {**failed, **excluded}]
        if not usable:
            failures = {**refused, **failed, **excluded}
            reasons = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
            raise UnsupportedProblem(f"Nothing computes {problem} on {self.device.name}: {reasons}.")
        known = {name: self._figures(problem, name, operator.default) for name in usable}
        found = {name: figures for name, figures in known.items() if figures is not None}
        own = found.get(operator.default) or self._foretold(problem, operator.default)
        compared = _comparable(found, own) or {usable[0]: self._counted(problem, usable[0])}
        paced = {name: in_a_model(one, problem, name, self.device) for name, one in compared.items()}
        return [
            (_option(part, name, figures, default=name == operator.default), figures.forward_share)
            for name, figures in paced.items()
        ]

    def _figures(self, problem: Problem, name: str, last_resort: str) -> Figures | None:
        found = self._foretold(problem, name)
        return self._counted(problem, name) if found is None and name == last_resort else found

    def _foretold(self, problem: Problem, name: str) -> Figures | None:
        series = self._of(problem.operator).series.get(name)
        return series.figures(problem, self.device) if series else None

    def _counted(self, problem: Problem, name: str) -> Figures:
        missing = missing_rates(self.device)
        if missing:
            words = (
                f"Nothing is known of {problem.operator} on {self.device.name}: no measurements, and "
                f"{missing}. Measure there: `selector profile {problem.operator} --count 60`."
            )
            raise NoMeasurements(f"{words} {self.trouble}" if self.trouble else words)
        return counted(problem, name, self.device)

    def _of(self, operator: str) -> Measurements:
        if operator not in self._measurements:
            evidence = self._selector.evidence(operator, self.device.key)
            self._measurements[operator] = _measurements(evidence)
            if isinstance(evidence, JointEvidence):
                self.joint.add(operator)
            elif evidence.shipped:
                self.shipped.add(operator)
        return self._measurements[operator]

    def _failures(self, problem: Problem, default: str) -> Mapping[str, str]:
        """Implementations that failed where the figures are from, with the reason."""
        evidence = self._selector.evidence(problem.operator, self.device.key)
        return evidence.failures(problem, self.device, default)[0]


@lru_cache(maxsize=64)
def _measurements(evidence: Evidence) -> Measurements:
    """The series of one evidence, made once for each snapshot of a database."""
    return Measurements(evidence)


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


def _recomputed(option: Option, forward_share: float) -> Option:
    again = 1 + forward_share
    return replace(
        option, recomputed=True, device_ms=option.device_ms * again, host_ms=option.host_ms * again
    )
