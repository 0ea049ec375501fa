"""One state of one database, loaded as far as questions need it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Record

from ..cost_model.stored_models import latest_model, readable_models
from ..errors import ModelVersionMismatch
from ..workloads.imported_operator import ImportedOperator, imported_operators
from .confirmation import unconfirmed
from .evidence import Evidence
from .shipped.rejections import rejected

if TYPE_CHECKING:
    from kernel_selector.db import Database, StoredModel
    from kernel_selector.db.changes import Moment

    from ..cost_model.predictor import Predictor
    from .imported_evidence import ImportedEvidence

EARLIER = 2  # cost models that are tried after one that was refused
Pair = tuple[str, str]  # an operator and the key of a device
State = tuple[str, list[dict[str, Any]]]  # snapshot and listing of models
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
        self.caveats: tuple[str, ...] = ()
        self._moment: Moment | None = None
        if database is not None:
            with database.read() as connection:
                self._open(connection)
                if earlier is not None:
                    self._take_over(connection, earlier)
                    wanted = {*wanted, *filter(self._knows, earlier.loaded)}
                for pair in self._everything() if complete else wanted:
                    if pair not in self._evidence:
                        self._read(connection, *pair)
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
        body.devices = tuple(devices)
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
    def loaded(self) -> set[Pair]:
        """Pairs of operator and device that have been read so far."""
        return set(self._evidence)

    def _open(self, connection: Any) -> None:
        from kernel_selector import db

        self.state = state_of(connection)
        self._moment = None if self._shipped else db.changes.moment(connection)
        self.records = db.records.total(connection)
        self.devices = tuple(db.records.devices(connection))
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
        """Take what an earlier body has read, with the problems renewed that have changed since.

        Nothing of it where the database is another one by now.
        """
        from kernel_selector import db

        changed = earlier._moment and db.changes.since(connection, earlier._moment)
        if changed is None:
            return
        self.imported |= {
            name: item for name, item in earlier.imported.items() if name not in changed.imported
        }
        for pair, found in earlier._evidence.copy().items():
            operator, _ = pair
            if not isinstance(found, Evidence):
                if operator not in changed.imported:
                    self._evidence[pair] = found
            elif found.versions == _versions(operator):
                keys = changed.problems.get(pair, ())
                same = not keys and self._rejected(*pair) == earlier._rejected(*pair)
                self._evidence[pair] = found if same else self._own(connection, pair, keys, found)
        for operator, stored in earlier._models.copy().items():
            if self._models_of(operator) == earlier._models_of(operator) and operator not in earlier.refused:
                self._models[operator] = stored
                if operator in earlier._predictors:
                    self._predictors[operator] = earlier._predictors[operator]

    def _models_of(self, operator: str) -> list[dict[str, Any]]:
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
            self._read(connection, *pair)

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

    def _read(self, connection: Any, operator: str, device_key: str) -> None:
        if operator not in self._models:
            try:
                self._models[operator] = latest_model(connection, operator)
            except ModelVersionMismatch as error:  # raised when the model is needed, which it may not be
                self._models[operator] = error
        if operator in self.imported:
            from ..workloads.imported_columns import load_columns
            from .imported_evidence import ImportedEvidence

            imported = self.imported[operator]
            columns = load_columns(connection, imported, imported.measured_devices[device_key].name)
            self._evidence[operator, device_key] = ImportedEvidence(columns)
            return
        self._evidence[operator, device_key] = self._own(connection, (operator, device_key))

    def _own(
        self,
        connection: Any,
        pair: Pair,
        keys: Collection[str] | None = None,
        earlier: Evidence | None = None,
    ) -> Evidence:
        """The measurements of an operator of ours on a device.

        Of all problems, or of those with some keys, beside what an earlier evidence has of the others.
        """
        from kernel_selector import db
        from kernel_selector.db.bulk import parts

        operator, device_key = pair
        where = {"operator": operator, "device_key": device_key}
        asked = [None] if keys is None else list(parts(sorted(keys)))
        waiting: dict[int, str] = {}
        for part in asked:
            waiting |= unconfirmed(connection, **where, problem_keys=part, shipped=self._beside)
        found = (db.records.newest(connection, **where, problem_keys=part, without=waiting) for part in asked)
        return Evidence(
            chain.from_iterable(found),
            _versions(operator),
            self._rejected(operator, device_key),
            shipped=self._shipped,
            waiting=Counter(waiting.values()),
            kept=None if earlier is None else earlier.apart_from(keys or ()),
        )

    def _rejected(self, operator: str, device_key: str) -> list[Record]:
        """The gate's verdicts on an operator that concern a measured device."""
        device = next((one for one in self.devices if one.key == device_key), None)
        return rejected(operator, device) if device else []


def _versions(operator: str) -> dict[str, str]:
    """The present version of each implementation of an operator."""
    return {name: item.version for name, item in registry.implementations(operator).items()}


def state_of(connection: Any) -> State:
    """Identity of a database's content: the snapshot of the measurements, and the models."""
    from kernel_selector import db

    return db.snapshot(connection), readable_models(connection)
