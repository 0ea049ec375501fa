"""One state of one database, loaded as far as questions need it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Record
from kernel_selector.kernels.contract.record import LAUNCHED

from ..cost_model.stored_models import latest_model, readable_models
from ..errors import ModelVersionMismatch
from ..workloads.imported_operator import ImportedOperator, imported_operators
from .confirmation import waiting
from .evidence import NO_OTHERS, Evidence, Others
from .shipped.rejections import rejected

if TYPE_CHECKING:
    from kernel_selector.db import Database, Figures, StoredModel
    from kernel_selector.db.changes import Moment

    from ..cost_model.predictor import Predictor
    from .imported_evidence import ImportedEvidence

EARLIER = 2  # cost models that are tried after one that was refused
Pair = tuple[str, str]  # an operator and the key of a device
State = tuple[str, list[dict[str, Any]]]  # snapshot and listing of models
MOST_RENEWED = 1 / 3  # of the problems: beyond, all are read anew in less time
NOTHING = "none"  # the snapshot of a database that is not there


class Changed(Exception):
    """The database says something else by now: `pair` must be loaded together with all the rest."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(f"the database has changed since {pair} was left out")
        self.pair = pair


class Body:
    """The body of evidence in one database: its measurements and cost models at one moment.

    `wanted` are pairs of an operator and a device's key to read at once, in one transaction with the
    snapshot; `complete` wants them all, and then the database is not asked again. Else what is missing is
    read when it is first asked about, and raises Changed unless the database still has the same content.
    Without a database there is nothing, and `caveats` says what to do. `shipped`: it came with this package.
    `beside`: what tokens sent is held against what ships. `earlier` is the body of an earlier moment: what it
    has read is there at once, and of the database only what has changed since is read.
    """

    def __init__(
        self,
        database: Database | None,
        *,
        complete: bool = False,
        wanted: Iterable[Pair] = (),
        shipped: bool = False,
        beside: bool = False,
        earlier: Body | None = None,
    ) -> None:
        self._database, self._shipped, self._beside = database, shipped, beside
        self._reading = Lock()  # of the database, which may take its time
        self._lock = RLock()
        self._evidence: dict[Pair, Evidence | ImportedEvidence] = {}
        self._models: dict[str, StoredModel | ModelVersionMismatch | None] = {}
        self._predictors: dict[str, Predictor | None] = {}
        self.refused: dict[str, str] = {}
        self.imported: dict[str, ImportedOperator] = {}
        self.state: State = NOTHING, []
        self.records = 0
        self.devices: tuple[Device, ...] = ()
        self.trusted_devices: tuple[Device, ...] = ()  # of authors who are trusted, and of the owner
        self.caveats: tuple[str, ...] = ()
        self._moment: Moment | None = None
        if database is not None:
            with database.read() as connection:
                self._open(connection)
                if earlier is not None:
                    self._take_over(connection, earlier)
                    wanted = {*wanted, *filter(self._knows, earlier.loaded)}
                self._read(connection, self._everything() if complete else wanted)
        if complete:
            self._database = None

    @classmethod
    def missing(cls, reason: str) -> Body:
        """The body of a database that is not there, with the reason as its caveat."""
        body = cls(None)
        body.caveats = (reason,)
        return body

    @classmethod
    def of(
        cls,
        evidence: Mapping[Pair, Evidence | ImportedEvidence],
        models: Mapping[str, StoredModel],
        devices: Iterable[Device] = (),
        imported: Iterable[ImportedOperator] = (),
    ) -> Body:
        """The body of evidence in memory: measurements, a cost model of each operator, and devices.

        `imported` describe the operators that have ImportedEvidence, on devices that they name themselves.
        """
        body = cls(None)
        body._evidence |= evidence
        body._models |= models
        body.devices = body.trusted_devices = tuple(devices)
        body.imported |= {operator.name: operator for operator in imported}
        of_ours = [one for one in evidence.values() if isinstance(one, Evidence)]
        body.records = sum(len(group) for one in of_ours for group in one.groups.values())
        body.records += sum(operator.rows for operator in body.imported.values())
        return body

    @property
    def database(self) -> Database | None:
        """The database itself; None where there is none, or all of it has been read."""
        return self._database

    @property
    def snapshot(self) -> str:
        """Id of the measurements: equal for equal ones."""
        return self.state[0]

    @property
    def models(self) -> list[dict[str, Any]]:
        """The stored cost models, without their arrays."""
        return self.state[1]

    @property
    def measured(self) -> set[Pair]:
        """Pairs of operator and device that there are measurements of. Raises DatabaseError."""
        from kernel_selector import db

        if self._database is None:
            return self.loaded
        with self._database.read() as connection:
            return {(row["operator"], row["device_key"]) for row in db.records.counts(connection)}

    @property
    def loaded(self) -> set[Pair]:
        """Pairs of operator and device that have been read so far."""
        return set(self._evidence)

    def _open(self, connection: Any) -> None:
        from kernel_selector import db

        self.state = state_of(connection)
        self._moment = None if self._shipped else db.changes.moment(connection)
        self.records = db.records.total(connection)
        trusted, others = db.records.devices_by_trust(connection)
        self.devices, self.trusted_devices = (*trusted, *others), tuple(trusted)
        self.imported = imported_operators(connection)
        self.records += sum(item.rows for item in self.imported.values())
        if not self.devices and not self.imported:
            self.caveats = ("The database has no measurements yet: run `selector quickstart`.",)

    def _everything(self) -> list[Pair]:
        """All pairs of an operator and a device that there may be measurements of."""
        keys = sorted({device.key for device in self.devices})
        everything = [(operator, key) for operator in registry.operators() for key in keys]
        everything += [(name, key) for name, item in self.imported.items() for key in item.measured_devices]
        return everything

    def _knows(self, pair: Pair) -> bool:
        """Whether there are such an operator and, of an imported one, such a device."""
        operator, device_key = pair
        imported = self.imported.get(operator)
        return device_key in imported.measured_devices if imported else operator in registry.operators()

    def _take_over(self, connection: Any, earlier: Body) -> None:
        """Take what an earlier body has read, and read of it the problems that have changed since.

        Nothing of it where the database is another one by now.
        """
        from kernel_selector import db

        if earlier._moment is None:
            return
        changed = db.changes.since(connection, earlier._moment)
        if changed is None:
            return
        for name, item in earlier.imported.items():
            if name not in changed.imported:
                self.imported[name] = item
        for pair, found in earlier._evidence.copy().items():
            operator, _ = pair
            if not isinstance(found, Evidence):
                if operator not in changed.imported:
                    self._evidence[pair] = found
            elif found.versions == _versions(operator):
                self._renew(connection, pair, found, changed.problems.get(pair, ()))
            if pair in self._evidence and operator not in changed.models:
                self._take_model(operator, earlier)

    def _renew(self, connection: Any, pair: Pair, earlier: Evidence, keys: Collection[str]) -> None:
        """Take earlier evidence with the problems of some keys as they are now.

        Not where these are most of them: reading everything is quicker then.
        """
        from kernel_selector.db.bulk import parts

        if len(keys) > len(earlier.problems) * MOST_RENEWED:
            return
        if not keys and [*earlier.rejected] == self._rejected(*pair):
            self._evidence[pair] = earlier
            return
        found = [self._counting(connection, pair, part) for part in parts(sorted(keys))]
        self._evidence[pair] = self._arranged(pair, found, earlier.others(keys))

    def _take_model(self, operator: str, earlier: Body) -> None:
        """Take an earlier body's cost model of an operator, unless it was refused or is listed no more."""
        stored = earlier._models.get(operator)
        if isinstance(stored, ModelVersionMismatch) or operator in earlier.refused:
            return
        if operator in earlier._models and self._listed(operator) == earlier._listed(operator):
            self._models[operator] = stored
            if operator in earlier._predictors:
                self._predictors[operator] = earlier._predictors[operator]

    def _listed(self, operator: str) -> list[dict[str, Any]]:
        return [model for model in self.models if model["operator"] == operator]

    def measurements(self, operator: str, device_key: str) -> Evidence | ImportedEvidence:
        """The measurements of an operator on a kind of device. Raises Changed and DatabaseError."""
        pair = operator, device_key
        if pair not in self._evidence:
            with self._reading:
                if pair not in self._evidence and self._database is None:
                    self._evidence[pair] = Evidence((), _versions(operator))
                elif pair not in self._evidence and self._database is not None:
                    self._read_later(self._database, pair)
        return self._evidence[pair]

    def _read_later(self, database: Database, pair: Pair) -> None:
        with database.read() as connection:
            if state_of(connection) != self.state:
                raise Changed(pair)
            self._read(connection, [pair])

    def predictor(self, operator: str) -> Predictor | None:
        """The latest cost model of an operator of which evidence was asked for, or None.

        One that is damaged or of another version is not used but an earlier one, or none where that is too:
        `refused` says so.
        """
        with self._lock:
            if operator in self._models and operator not in self._predictors:
                self._predictors[operator] = self._usable(operator)
            return self._predictors.get(operator)

    def _usable(self, operator: str) -> Predictor | None:
        from ..cost_model.predictor import Predictor

        ours = None if operator in self.imported else registry.operator(operator)
        stored = self._models.get(operator)
        for skipped in range(EARLIER + 1):
            try:
                if isinstance(stored, ModelVersionMismatch):
                    raise stored.with_traceback(None)
                return None if stored is None else Predictor(stored, ours)
            except ModelVersionMismatch as error:
                self.refused.setdefault(operator, str(error))
            stored = self._earlier(operator, skipped + 1)
        return None

    def _earlier(self, operator: str, skip: int) -> StoredModel | ModelVersionMismatch | None:
        """The model so many before the latest; None where there is none, or the database cannot be read."""
        from kernel_selector.db import DatabaseError

        if self._database is None:
            return None
        try:
            with self._database.read() as connection:
                return latest_model(connection, operator, skip=skip)
        except ModelVersionMismatch as error:
            return error
        except DatabaseError:
            return None

    def _read(self, connection: Any, wanted: Iterable[Pair]) -> None:
        """Read the measurements of each pair, and the cost models of the operators, that are not there.

        Questions of other threads are answered once the measurements are there: the models are before.
        """
        found = {pair: self._newly(connection, pair) for pair in wanted if pair not in self._evidence}
        for operator in {operator for operator, _ in (*self._evidence, *found)} - self._models.keys():
            try:
                self._models[operator] = latest_model(connection, operator)
            except ModelVersionMismatch as error:  # raised when the model is needed, which it may not be
                self._models[operator] = error
        self._evidence |= found

    def _newly(self, connection: Any, pair: Pair) -> Evidence | ImportedEvidence:
        """The measurements of a pair, read from the database."""
        imported = self.imported.get(pair[0])
        if imported is None:
            return self._arranged(pair, [self._counting(connection, pair)])
        return _imported(connection, imported, pair[1])

    def _counting(
        self, connection: Any, pair: Pair, problem_keys: Sequence[str] | None = None
    ) -> tuple[Iterator[Figures], Counter[str]]:
        """Measurements of all or some problems that count, and how many of launched layers wait by the
        problem's key.
        """
        from kernel_selector import db

        where: dict[str, Any] = {"operator": pair[0], "device_key": pair[1], "problem_keys": problem_keys}
        claims = list(waiting(connection, **where, shipped=self._beside))
        without = [claim.id for claim in claims]
        launched = Counter(claim.problem_key for claim in claims if claim.regime == LAUNCHED)
        return db.records.newest(connection, **where, without=without), launched

    def _arranged(
        self, pair: Pair, found: Sequence[tuple[Iterator[Figures], Counter[str]]], others: Others = NO_OTHERS
    ) -> Evidence:
        """Evidence of what was found in parts, beside other problems."""
        return Evidence(
            chain.from_iterable(figures for figures, _ in found),
            _versions(pair[0]),
            self._rejected(*pair),
            shipped=self._shipped,
            waiting=sum((waiting for _, waiting in found), Counter()),
            others=others,
        )

    def _rejected(self, operator: str, device_key: str) -> list[Record]:
        """The gate's verdicts on an operator that concern a measured device."""
        device = next((one for one in self.devices if one.key == device_key), None)
        return rejected(operator, device) if device else []


def _imported(connection: Any, operator: ImportedOperator, device_key: str) -> ImportedEvidence:
    from ..workloads.imported_columns import load_columns
    from .imported_evidence import ImportedEvidence

    return ImportedEvidence(load_columns(connection, operator, operator.measured_devices[device_key].name))


def _versions(operator: str) -> dict[str, str]:
    """The present version of each implementation of an operator."""
    return {name: item.version for name, item in registry.implementations(operator).items()}


def state_of(connection: Any) -> State:
    """Identity of a database's content: the snapshot of the measurements, and the models."""
    from kernel_selector import db

    return db.snapshot(connection), readable_models(connection)
