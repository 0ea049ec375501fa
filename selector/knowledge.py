"""One state of the database, loaded as far as questions need it."""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device

from .evidence import Evidence

if TYPE_CHECKING:
    from kernel_selector.db import Database, StoredModel

    from .predictor import Predictor

NOTHING = "none"  # the snapshot of a database that is not there


class Knowledge:
    """Measurements and models at one moment.

    `complete` reads everything at once, in one transaction, so that all answers rest on the same
    snapshot; else each operator and kind of device is read when it is first asked about, which may be
    a moment later than `snapshot`. Without a database it is empty, and `caveats` says what to do.
    """

    def __init__(self, database: Database | None, *, missing: str = "", complete: bool = False) -> None:
        self._database = database
        self._lock = RLock()
        self._evidence: dict[tuple[str, str], Evidence] = {}
        self._models: dict[str, StoredModel | None] = {}
        self._predictors: dict[str, Predictor] = {}
        self.snapshot = NOTHING
        self.devices: tuple[Device, ...] = ()
        self.caveats: tuple[str, ...] = (missing,) if missing else ()
        if database is not None:
            with database.read() as connection:
                self._open(connection, complete)

    def _open(self, connection: Any, complete: bool) -> None:
        from kernel_selector import db

        self.snapshot = db.snapshot(connection)
        self.devices = tuple(db.records.devices(connection))
        if not self.devices:
            self.caveats = ("The database has no measurements yet: run `selector quickstart`.",)
        if complete:
            for operator in registry.operators():
                self._models[operator] = db.models.latest(connection, operator=operator)
                for key in {device.key for device in self.devices}:
                    self._evidence[operator, key] = _read(connection, operator, key)

    def evidence(self, operator: str, device_key: str) -> Evidence:
        """The measurements of an operator on a kind of device."""
        key = operator, device_key
        with self._lock:
            if key not in self._evidence:
                if self._database is None or all(device.key != device_key for device in self.devices):
                    self._evidence[key] = Evidence((), {})
                else:
                    with self._database.read() as connection:
                        self._evidence[key] = _read(connection, operator, device_key)
            return self._evidence[key]

    def predictor(self, operator: str) -> Predictor | None:
        """The latest cost model of an operator, or None. Raises ModelVersionMismatch."""
        with self._lock:
            stored = self._model(operator)
            if stored is None:
                return None
            if operator not in self._predictors:
                from .predictor import Predictor

                self._predictors[operator] = Predictor(stored, registry.operator(operator))
            return self._predictors[operator]

    def _model(self, operator: str) -> StoredModel | None:
        if operator not in self._models and self._database is not None:
            from kernel_selector import db

            with self._database.read() as connection:
                self._models[operator] = db.models.latest(connection, operator=operator)
        return self._models.get(operator)


def _read(connection: Any, operator: str, device_key: str) -> Evidence:
    from kernel_selector import db

    versions = {name: item.version for name, item in registry.implementations(operator).items()}
    return Evidence(db.records.find(connection, operator=operator, device_key=device_key), versions)
