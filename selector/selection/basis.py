"""The basis of a choice: whose measurements its figures rest on, how many, and the most similar one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kernel_selector.kernels.contract import Device, Environment, Problem
from kernel_selector.kernels.contract.errors import number_of

from ..text.units import format_ms

if TYPE_CHECKING:
    from ..cost_model.estimate import Tier
    from .evidence import Evidence
    from .imported_evidence import ImportedEvidence

COUNTED = "counted"  # the source where bytes were counted from the equations, and nothing was measured


class SimilarMeasurement(NamedTuple):
    """The measured problem that is most like the one asked about, and what was measured of it.

    `values` are its own where they differ from those asked about, `doublings` the distance of the two in log2
    of the sizes (words that differ count too), `times_ms` the times of its implementations, fastest first.
    """

    device: str
    values: Mapping[str, Any]
    doublings: float
    times_ms: Mapping[str, float]
    shipped: bool  # whether all of these came with the package


class Basis(NamedTuple):
    """The measurements that the figures of the chosen implementation rest on.

    `source` is that of its figures, COUNTED where bytes alone were counted, "" where nothing is known. The
    measurements are those of one problem, or with `learned` those that a cost model has learned from.
    """

    source: str
    own_measurements: int
    shipped_measurements: int
    learned: bool
    most_similar: SimilarMeasurement | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        found = self.most_similar
        return {**self._asdict(), "most_similar": found and found._asdict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Basis:
        """The basis that `to_dict` wrote."""
        found = data["most_similar"]
        return cls(**{**data, "most_similar": found and SimilarMeasurement(**found)})

    def words(self, asked: Problem, device: str) -> str:
        """The basis in a line, of a question about a problem and the name of a device."""
        counts = {"own": self.own_measurements, "shipped": self.shipped_measurements}
        parts = [number_of(count, f"{whose} measurement") for whose, count in counts.items() if count]
        found, known = self.most_similar, " and ".join(parts)
        if self.source == COUNTED:
            known = "bytes counted from the equations"
        known = known or "no measurement"
        if found is None:
            return known
        place = "" if found.device == device else f" on {found.device}"
        name, time_ms = next(iter(found.times_ms.items()))
        if parts and not self.learned:
            is_asked = not (found.values or place)
            return (
                f"{known} of {_of(found, asked)}{place}{'' if is_asked else f': {name} {format_ms(time_ms)}'}"
            )
        return f"{known}; most similar: {_of(found, asked)}{place}, {name} {format_ms(time_ms)}"


def _of(found: SimilarMeasurement, asked: Problem) -> str:
    """The problem that was measured, in words."""
    differing = ", ".join(f"{name}={value} instead of {asked[name]}" for name, value in found.values.items())
    far = f" ({found.doublings:.2g} doublings away)" if found.doublings else ""
    return f"{differing}{far}" if differing else "this problem"


class Ground(NamedTuple):
    """The evidence behind a choice's figures, by which its basis is worked out when somebody asks for it.

    Looking for the most similar measurement would slow down batches, in which few ask. `problem` is what was
    looked up, `measured` the one whose measurements these are, None of a cost model's prediction.
    """

    source: str
    own: int
    shipped: int
    measured: Problem | None
    doublings: float
    problem: Problem
    evidence: Evidence | ImportedEvidence
    device: Device
    software: Environment | None

    @classmethod
    def of(
        cls,
        tier: Tier | None,
        source: str,
        problem: Problem,
        evidence: Evidence | ImportedEvidence,
        device: Device,
        software: Environment | None,
    ) -> Ground:
        """The ground of figures from a tier; None: of a choice without figures."""
        own = shipped = 0
        if tier is not None and tier.problem is None:
            own, shipped = (0, tier.learned) if tier.shipped else (tier.learned, 0)
        elif tier is not None:
            shipped = len(tier.shipped)
            own = len(tier.estimates) - shipped
        measured, doublings = (tier.problem, tier.doublings) if tier else (None, 0.0)
        return cls(source, own, shipped, measured, doublings, problem, evidence, device, software)


def basis_of(ground: Ground, asked: Problem, implementation: str, time_ms: float | None) -> Basis:
    """The basis of a choice, with the most similar measurement of those that it could rest on.

    `asked` is the problem of the question, the others what was chosen for it and its time.
    """
    learned = ground.measured is None and bool(ground.own or ground.shipped)
    found = _most_similar(ground, asked, implementation, time_ms)
    return Basis(ground.source, ground.own, ground.shipped, learned, found)


def _most_similar(
    ground: Ground, asked: Problem, implementation: str, time_ms: float | None
) -> SimilarMeasurement | None:
    measured, doublings = ground.measured, ground.doublings
    if measured is None:
        found = ground.evidence.most_similar(ground.problem)
        if found is None:
            return None
        measured, doublings = found
    tier = _tier_of(ground, measured, implementation, time_ms)
    times = sorted((one.time_ms, name) for name, one in tier.estimates.items())
    return SimilarMeasurement(
        device=ground.device.name,
        values={name: value for name, value in measured.complete.items() if value != asked[name]},
        doublings=round(doublings, 4),
        times_ms={name: each_ms for each_ms, name in times},
        shipped=tier.shipped >= tier.estimates.keys(),
    )


def _tier_of(ground: Ground, measured: Problem, implementation: str, time_ms: float | None) -> Tier:
    """The tier of a measured problem that the chosen time is from, else the best with what was chosen."""
    tiers = list(ground.evidence.measured(measured, ground.device, ground.software))
    having = [tier for tier in tiers if implementation in tier.estimates]
    same = [tier for tier in having if tier.estimates[implementation].time_ms == time_ms]
    return (same or having or tiers)[0]
