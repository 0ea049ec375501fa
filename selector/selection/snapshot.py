"""One state of one database, loaded as far as questions need it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device

from ..cost_model.stored_models import latest_model, readable_models
from ..errors import ModelVersionMismatch
from ..workloads.imported_operator import ImportedOperator, imported_operators
from .confirmation import unconfirmed
from .evidence import Evidence
from .shipped.rejections import rejected

if TYPE_CHECKING:
    from kernel_selector.db import Database, StoredModel

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
    `beside`: what tokens sent is held against what ships.
    """

    def __init__(
        self,
        database: Database | None,
        *,
        missing: str = "",
        complete: bool = False,
        wanted: Iterable[Pair] = (),
        shipped: bool = False,
        beside: bool = False,
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
        self.caveats: tuple[str, ...] = (missing,) if missing else ()
        if database is not None:
            with database.read() as connection:
                self._open(connection, complete, wanted)
        if complete:
            self._database = None

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

    def _open(self, connection: Any, complete: bool, wanted: Iterable[Pair]) -> None:
        from kernel_selector import db

        self.state = state_of(connection)
        self.records = db.records.total(connection)
        self.devices = tuple(db.records.devices(connection))
        self.imported = imported_operators(connection)
        self.records += sum(item.rows for item in self.imported.values())
        if not self.devices and not self.imported:
            self.caveats = ("The database has no measurements yet: run `selector quickstart`.",)
        keys = {device.key for device in self.devices}
        everything = [(operator, key) for operator in registry.operators() for key in sorted(keys)]
        everything += [(name, key) for name, item in self.imported.items() for key in item.measured_devices]
        for pair in everything if complete else wanted:
            self._read(connection, *pair)

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
        from kernel_selector import db

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
        where = {"operator": operator, "device_key": device_key}
        waiting = unconfirmed(connection, **where, shipped=self._beside)
        found = db.records.newest(connection, **where, without=waiting)
        device = next((one for one in self.devices if one.key == device_key), None)
        verdicts = rejected(operator, device) if device else ()
        self._evidence[operator, device_key] = Evidence(
            found, _versions(operator), verdicts, shipped=self._shipped, waiting=Counter(waiting.values())
        )


def _versions(operator: str) -> dict[str, str]:
    """The present version of each implementation of an operator."""
    return {name: item.version for name, item in registry.implementations(operator).items()}


def state_of(connection: Any) -> State:
    """Identity of a database's content: the snapshot of the measurements, and the models."""
    from kernel_selector import db

    return db.snapshot(connection), readable_models(connection)
