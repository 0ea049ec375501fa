"""All that questions are answered from: a user's own measurements, and those that come with this package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Environment, Problem
from kernel_selector.kernels.contract.record import LAUNCHED

from ..cost_model.estimate import OTHER_HOST
from . import shipped as shipping
from .devices import Resolved, completed, resolve
from .evidence import Evidence
from .joint_evidence import JointEvidence
from .snapshot import NOTHING, Body
from .transfer import Corrections, RegimeCorrections, Seen, alike, best_first, has_rates, seen_on_both

if TYPE_CHECKING:
    from ..cost_model.estimate import Tier
    from ..cost_model.predictor import Predictor
    from ..workloads.imported_operator import ImportedOperator
    from .imported_evidence import ImportedEvidence

_OPENING = Lock()  # threads that ask at once wait for the first
LAUNCHES = ": times of launches go by those of this host."
UNUSABLE = "The measurements that come with this package cannot be used: "


class Knowledge:
    """Two bodies of evidence as one: a database at one moment, and what ships unless that is turned off.

    What ships is opened when it is first needed, once for all Selectors of a process. `unusable` says why it
    cannot be used; another Knowledge tries again. `absent` says in all answers that the user's own database,
    though named, is not there.
    """

    def __init__(self, own: Body, *, shipped: bool, absent: str = "") -> None:
        self.own = own
        self._absent = absent
        self._with_shipped = shipped
        self._unusable = ""
        self._joint: dict[tuple[str, str, str], Evidence] = {}
        self._seen: dict[tuple[str, str], list[Seen]] = {}
        self._corrections: dict[tuple[str, str, str], Corrections] = {}
        self._regime_corrections: dict[tuple[str, str, str], RegimeCorrections | None] = {}
        self._resolved: dict[str | None, Resolved] = {}

    @cached_property
    def shipped(self) -> Body | None:
        """The body that ships; None where it is turned off or cannot be used."""
        from kernel_selector.db import DatabaseError

        if not self._with_shipped:
            return None
        try:
            return shipped_body()
        except (DatabaseError, OSError) as error:
            self._unusable = f"{UNUSABLE}{error}"
            return None

    @property
    def unusable(self) -> str:
        """Reason why the body that ships cannot be used, "" where it can or is turned off."""
        return self._unusable if self.shipped is None else ""

    @cached_property
    def snapshot(self) -> str:
        """Id of all measurements: equal for equal ones. One of two bodies has the ids of both."""
        ids = [body.snapshot for body in (self.own, self.shipped) if body is not None and body.records]
        return "+".join(ids) or (NOTHING if self.own.snapshot == NOTHING else self.own.snapshot)

    @property
    def caveats(self) -> tuple[str, ...]:
        """Caveats of all answers."""
        found = self.unusable, self._absent if self.shipped else ""
        return tuple(filter(None, found))

    @property
    def missing(self) -> tuple[str, ...]:
        """Reasons why there are no measurements, which one's own database has; none where some ship."""
        return () if self.shipped else self.own.caveats

    @property
    def imported(self) -> dict[str, ImportedOperator]:
        """The imported operators by name: none ships."""
        return self.own.imported

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The measured devices, one's own first, each with its host once.

        What authors say of a device who are not trusted is behind what ships. What one does not say of a GPU,
        the next of its kind does.
        """
        shipped = self.shipped.devices if self.shipped else ()
        found: dict[str, Device] = {}
        for device in completed([*self.own.trusted_devices, *shipped, *self.own.devices]):
            found.setdefault(device.fingerprint, device)
        return tuple(found.values())

    @property
    def models(self) -> list[dict[str, Any]]:
        """The cost models without their arrays, those that ship last, which say so."""
        bodies = (self.own, False), (self.shipped, True)
        return [{**one, "shipped": ships} for body, ships in bodies if body for one in body.models]

    def resolved(self, asked: object) -> Resolved:
        """The device of a question, looked up once for each name. Raises UnknownDevice and InvalidRequest."""
        if asked is not None and type(asked) is not str:
            return resolve(asked, self.devices)
        if asked not in self._resolved:
            self._resolved[asked] = resolve(asked, self.devices)
        return self._resolved[asked]

    def evidence(self, operator: str, device_key: str, regime: str = LAUNCHED) -> Evidence:
        """The measurements of an operator of this package; raises as `measurements`."""
        found = self.measurements(operator, device_key, regime)
        assert isinstance(found, Evidence), operator
        return found

    def measurements(
        self, operator: str, device_key: str, regime: str = LAUNCHED
    ) -> Evidence | ImportedEvidence:
        """The measurements of an operator on a kind of device in one regime: imported ones have no other.

        Raises Changed and DatabaseError.
        """
        key = operator, device_key, regime
        if key in self._joint:
            return self._joint[key]
        own = self.own.measurements(operator, device_key)
        if not isinstance(own, Evidence):
            return own
        self._joint[key] = found = self._with_what_ships(own.in_regime(regime), *key)
        return found

    def others(self, operator: str, device: Device) -> list[Device]:
        """The devices from which times of an operator may be carried over to a device, the best first.

        Raises as `measurements`.
        """
        found = alike(device, self.devices)
        counts = {key: len(self.evidence(operator, key).problems) for key in {one.key for one in found}}
        return best_first(device, found, counts)

    def corrections(self, operator: str, device: Device, origin: Device) -> Corrections:
        """Corrections of times that are carried over between two devices. Raises as `measurements`."""
        key = operator, device.text, origin.text
        if key not in self._corrections:
            self._corrections[key] = Corrections(self._seen_on(device, origin), operator, device, origin)
        return self._corrections[key]

    def _seen_on(self, device: Device, origin: Device) -> list[Seen]:
        """What was measured on both of two GPUs, of all operators."""
        key = device.text, origin.text
        if key not in self._seen:
            found: list[Seen] = []
            was_measured = device.kind == "cuda" and any(one.key == device.key for one in self.devices)
            for operator in registry.operators() if was_measured else ():
                here, there = (self.evidence(operator, one.key) for one in (device, origin))
                found += seen_on_both(here, there, device, origin)
            self._seen[key] = found
        return self._seen[key]

    def regime_corrections(self, operator: str, device: Device, regime: str) -> RegimeCorrections | None:
        """Corrections from launched layers to a regime: of a device, drawn towards those of the one most like
        it that has some; None where neither has. Raises as `measurements`.
        """
        key = operator, device.text, regime
        if key not in self._regime_corrections:
            self._regime_corrections[key] = self._between_regimes(operator, device, regime)
        return self._regime_corrections[key]

    def _between_regimes(self, operator: str, device: Device, regime: str) -> RegimeCorrections | None:
        if not has_rates(device):
            return None
        evidence, found = self.evidence, None
        others = (one for one in alike(device, self.devices) if evidence(operator, one.key, regime).problems)
        for one in (next(others, None), device):
            if one is not None:
                here, launched = evidence(operator, one.key, regime), evidence(operator, one.key)
                found = RegimeCorrections(here, launched, one, found)
        return found if found and found.places else None

    def _with_what_ships(self, own: Evidence, operator: str, device_key: str, regime: str) -> Evidence:
        if self.shipped is None or not any(one.key == device_key for one in self.shipped.devices):
            return own
        shipped = self.shipped.measurements(operator, device_key)
        assert isinstance(shipped, Evidence), operator
        shipped = shipped.in_regime(regime)
        return JointEvidence(own, shipped) if own.problems or own.left_out or own.waiting else shipped

    @property
    def refused(self) -> dict[str, str]:
        """Reasons why the latest cost models of operators are not used, of those that were needed so far."""
        return {**(self.shipped.refused if self.shipped else {}), **self.own.refused}

    def predictors(self, operator: str) -> list[tuple[Predictor, bool]]:
        """The latest cost models of an operator of which evidence was asked for, each with whether it ships.

        One's own first.
        """
        bodies = (self.own, False), (self.shipped, True)
        found = [(body.predictor(operator), ships) for body, ships in bodies if body]
        return [(predictor, ships) for predictor, ships in found if predictor is not None]


class ModelQuestion(NamedTuple):
    """A question to cost models: estimates for candidates of a problem, by name, on a device."""

    problem: Problem
    names: tuple[str, ...]
    device: Device
    software: Environment | None
    imported: bool
    least_noise: tuple[float, float]  # of the times of one's own cost model, and of the one that ships


def best_predictions(
    knowledge: Knowledge,
    predictors: Sequence[tuple[Predictor, bool]],
    questions: Mapping[int, ModelQuestion],
) -> dict[int, Tier]:
    """The estimates of one's own cost model where it has seen a problem's like, else of the one that has to
    go less far outside of what it has seen. The questions are of one operator, device and software.
    """
    found: dict[int, Tier] = {}
    for predictor, ships in predictors:
        open_ones = [
            index
            for index in questions
            if index not in found or not found[index].estimates or found[index].doublings
        ]
        asked = [questions[index] for index in open_ones]
        for index, tier in zip(open_ones, _tiers_of(knowledge, predictor, asked, ships=ships), strict=True):
            before = found.get(index)
            nearer = before is None or not before.estimates or tier.doublings < before.doublings
            if before is None or (tier.estimates and nearer):
                found[index] = tier
    return found


def _as_learned(knowledge: Knowledge, predictor: Predictor, device: Device) -> tuple[Device, Sequence[str]]:
    """The GPU as a cost model has learned it, of the same kind and if need be in another host, and caveats.

    A model that has seen one host or two would take what sets the cards apart for what launches cost.
    """
    if device.kind != "cuda" or device.host in predictor.hosts:
        return device, ()
    alike = (one for one in knowledge.devices if one.key == device.key and one.host in predictor.hosts)
    learned = next(alike, device)
    if learned is device or not device.host:
        return learned, ()
    words = OTHER_HOST.format(learned.host, device.host)
    return learned, (words + (LAUNCHES if device.launch_us and learned.launch_us else "."),)


def _tiers_of(
    knowledge: Knowledge, predictor: Predictor, asked: Sequence[ModelQuestion], *, ships: bool
) -> Iterator[Tier]:
    """One cost model's estimates for questions about one operator, device and software."""
    if not asked:
        return
    first = asked[0]
    learned, caveats = _as_learned(knowledge, predictor, first.device)
    for tier in predictor.tiers(
        [one.problem for one in asked],
        [one.names for one in asked],
        device=learned,
        software=first.software,
        known={} if first.imported else registry.implementations(first.problem.operator),
        least_noise=first.least_noise[ships],
    ):
        yield tier._replace(
            caveats=(*tier.caveats, *caveats),
            model=predictor.version,
            shipped=frozenset(tier.estimates) if ships else frozenset[str](),
            learned=predictor.learned,
            origin=None if learned is first.device else learned,
        )


def shipped_body() -> Body:
    """The body that comes with this package, opened once in a process. Raises DatabaseError and OSError."""
    with _OPENING:
        return _opened()


@cache
def _opened() -> Body:
    return Body(shipping.opened(), shipped=True)
