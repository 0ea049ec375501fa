"""The ways to compute each part on a device, with their prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, SelectorError, UnsupportedProblem

from ..cost_model.estimate import Estimate
from ..cost_model.features.roofline import missing_rates
from ..errors import NoMeasurements
from ..selection.answer import Known
from ..selection.evidence import Evidence
from ..selection.joint_evidence import JointEvidence
from ..selection.policy import Question, least_gain
from ..selection.selector import Selector
from ..selection.transfer import SOURCE as TRANSFER
from ..workloads.model import Part
from .layer_costs import MEASURED, Figures, Measurements, carried, counted, counted_bytes, foretold
from .pace import in_a_model
from .training_setup import Training


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


def undominated(options: Sequence[Option]) -> list[Option]:
    """Options of which no other is at least as good in everything, the first of equals."""
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
        self._measurements: dict[tuple[str, str], Measurements] = {}
        self._known: dict[Problem, Known | SelectorError] = {}
        self._options: dict[Part, tuple[Option, ...]] = {}

    def under(self, training: Training) -> Prices:
        """The prices on the same device for another training."""
        return Prices(self._selector, self.device, training)

    @property
    def trouble(self) -> str:
        """Reason why the measurements that come with this package cannot be used, "" where they can."""
        return self._selector.unusable

    @property
    def outdated(self) -> set[str]:
        """Implementations of which there are records of earlier versions alone, as operator.name."""
        return {
            f"{operator}.{name}"
            for (operator, _), found in self._measurements.items()
            for name in found.outdated
        }

    def look_up(self, parts: Sequence[Part]) -> None:
        """Ask the selector about the problems of several parts at once. Raises the errors of the database."""
        new = [problem for problem in {part.problem: None for part in parts} if problem not in self._known]
        if new:
            known = self._selector.known_each(new, self.device)
            self._known |= zip(new, known, strict=True)

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
        default = registry.operator(problem.operator).default
        known = self._known_of(part)
        usable, reasons = self._usable(problem.operator, known.prepared.question)
        if not usable:
            words = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            raise UnsupportedProblem(f"Nothing computes {problem} on {self.device.name}: {words}.")
        estimates = known.figures.estimates
        own = self._figures(problem, default, known)
        found = {
            name: own if name == default else self._figures(problem, name, known, beside=own)
            for name in usable
        }
        priced = {name: figures for name, figures in found.items() if figures is not None}
        if (default in usable and default not in priced) or not priced:
            last = default if default in usable else usable[0]
            priced[last] = self._counted(problem, last)
        if own is not None and own.source in MEASURED:
            told = {name: one for name, one in priced.items() if name in estimates or one.source in MEASURED}
            priced = told or priced  # what was scaled alone would win by error, in time and in bytes
        if own is not None:
            priced = {
                name: _credible(figures, own, estimates.get(name), estimates.get(default))
                for name, figures in priced.items()
            }
        paced = {name: in_a_model(one, problem, name, self.device) for name, one in priced.items()}
        return [
            (_option(part, name, figures, default=name == default), figures.forward_share)
            for name, figures in paced.items()
        ]

    def _known_of(self, part: Part) -> Known:
        self.look_up([part])
        known = self._known[part.problem]
        if isinstance(known, SelectorError):
            raise known
        return known

    def _usable(self, operator: str, question: Question) -> tuple[list[str], dict[str, str]]:
        """The candidates of a question that the training takes, and why others cannot be taken.

        The framework's own is none of them where the gate found it wrong and there are others.
        """
        taken = [name for name in question.names if not self.training.excludes(operator, name)]
        right = [name for name in taken if name != question.default] if question.default_is_wrong else taken
        reasons = dict.fromkeys(question.names, "excluded") | dict(question.excluded)
        return right or taken, {name: reasons[name] for name in sorted(reasons)}

    def _figures(
        self, problem: Problem, name: str, known: Known, beside: Figures | None = None
    ) -> Figures | None:
        """Measured figures of the problem or its layer's around it, else with the time that `choose` has.

        The latter too where the figures `beside`, of the framework's own, have such a time: device times and
        launched ones do not compare. Bytes are of the nearest measurements, or counted where there are none.
        None where nothing is known.
        """
        series = self._of(problem.operator, self.device).series.get(name)
        found = series.figures(problem, self.device) if series else None
        estimate, origin = known.figures.estimates.get(name), known.prepared.origin
        if found is None and origin.key != self.device.key:
            found = self._elsewhere(problem, name, origin)
            if found is not None and found.source == TRANSFER:
                return found
        is_measured = found is not None and found.source in MEASURED
        if estimate is None or (is_measured and (beside is None or beside.source in MEASURED)):
            return found
        bytes_of = found or counted_bytes(problem, name, self.device, estimate.memory_bytes)
        return foretold(bytes_of, estimate.time_ms, known.figures.tiers[name].source)

    def _elsewhere(self, problem: Problem, name: str, origin: Device) -> Figures | None:
        """Figures from the measurements of another device, None without any of this implementation."""
        series = self._of(problem.operator, origin).series.get(name)
        found = series.figures(problem, origin) if series else None
        return found and carried(found, problem, name, self.device, origin)

    def _counted(self, problem: Problem, name: str) -> Figures:
        missing = missing_rates(self.device)
        if missing:
            words = (
                f"Nothing is known of {problem.operator} on {self.device.name}: no measurements, and "
                f"{missing}. Measure there: `selector profile {problem.operator} --count 60`."
            )
            raise NoMeasurements(f"{words} {self.trouble}" if self.trouble else words)
        return counted(problem, name, self.device)

    def _of(self, operator: str, device: Device) -> Measurements:
        pair = operator, device.key
        if pair not in self._measurements:
            evidence = self._selector.evidence(*pair)
            self._measurements[pair] = _measurements(evidence)
            if isinstance(evidence, JointEvidence):
                self.joint.add(operator)
            elif evidence.shipped:
                self.shipped.add(operator)
        return self._measurements[pair]


def _credible(figures: Figures, own: Figures, estimate: Estimate | None, of_own: Estimate | None) -> Figures:
    """Figures no faster than the framework's own but by as much as a choice switches for."""
    noise = [one.noise for one in (estimate, of_own) if one is not None]
    if figures.device_ms and own.device_ms / figures.device_ms - 1 > least_gain(*noise):
        return figures
    slower = max(figures.device_ms, own.device_ms)
    return replace(figures, device_ms=slower, forward_ms=slower * figures.forward_share)


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
