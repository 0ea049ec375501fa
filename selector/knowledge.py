"""One state of the database, loaded as far as questions need it."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device

from .evidence import Evidence

if TYPE_CHECKING:
    from kernel_selector.db import Database

    from .predictor import Predictor

NOTHING = "none"  # the snapshot of a database that is not there


class Knowledge:
    """Measurements and models at one moment; what changes later in the database is not seen.

    Without a database it is empty, and says in `caveats` what to do about it.
    """

    def __init__(self, database: Database | None, missing: str = "") -> None:
        self._database = database
        self._lock = Lock()
        self._evidence: dict[tuple[str, str], Evidence] = {}
        self._predictors: dict[str, Predictor | None] = {}
        self.snapshot = NOTHING
        self.devices: tuple[Device, ...] = ()
        self.caveats: tuple[str, ...] = (missing,) if missing else ()
        if database is not None:
            self._open(database)

    def _open(self, database: Database) -> None:
        from kernel_selector import db

        with database.read() as connection:
            self.snapshot = db.snapshot(connection)
            self.devices = tuple(db.records.devices(connection))
        if not self.devices:
            self.caveats = ("The database has no measurements yet: run `selector quickstart`.",)

    def evidence(self, operator: str, device_key: str) -> Evidence:
        """The measurements of an operator on a kind of device."""
        key = operator, device_key
        with self._lock:
            if key not in self._evidence:
                self._evidence[key] = self._load_evidence(operator, device_key)
            return self._evidence[key]

    def _load_evidence(self, operator: str, device_key: str) -> Evidence:
        versions = {name: item.version for name, item in registry.implementations(operator).items()}
        if self._database is None or not self.devices:
            return Evidence((), versions)
        from kernel_selector import db

        with self._database.read() as connection:
            found = db.records.find(connection, operator=operator, device_key=device_key)
            return Evidence(found, versions)

    def predictor(self, operator: str) -> Predictor | None:
        """The latest cost model of an operator, or None. Raises ModelVersionMismatch."""
        with self._lock:
            if operator not in self._predictors:
                self._predictors[operator] = self._load_predictor(operator)
            return self._predictors[operator]

    def _load_predictor(self, operator: str) -> Predictor | None:
        if self._database is None:
            return None
        from kernel_selector import db

        from .predictor import Predictor

        with self._database.read() as connection:
            stored = db.models.latest(connection, operator=operator)
        return Predictor(stored, registry.operator(operator)) if stored else None
