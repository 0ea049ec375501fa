"""`Selector`: questions answered from one database, quickly and, when frozen, always alike."""

from __future__ import annotations

import os
import time
from functools import lru_cache, partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry

from .answer import DEFAULT_OPERATOR, answer, parse
from .choice import Choice
from .knowledge import Knowledge

if TYPE_CHECKING:
    from kernel_selector.db import Database

CHECK_S = 1.0  # how often to look whether the database has changed
CACHE_SIZE = 8192


class Selector:
    """Chooses implementations by the measurements and cost models of one database.

    `database` is a file path, a SQLAlchemy URL, an open `Database`, or None for the default one: of
    SELECTOR_DATABASE_URL, else the user's own, which may be missing (then every choice is the
    framework's default and says so). `frozen` keeps the first snapshot, so that all ranks of a
    distributed job agree; else changes are seen within a second. Safe to share among threads.
    Raises DatabaseMissing for a database that was named and is not there, and the other errors of
    opening one.
    """

    def __init__(self, database: str | Path | Database | None = None, frozen: bool = False) -> None:
        self.frozen = frozen
        self._source = database
        self._lock = RLock()
        self._open: Database | None = None
        self._stamp: object = None
        self._load()

    @property
    def snapshot(self) -> str:
        """Id of the measurements that choices are based on: equal ids, equal choices."""
        return self._knowledge.snapshot

    def choose(
        self,
        operator: str | None = None,
        /,
        *,
        device: object = None,
        memory: str | int | None = None,
        objective: str = "time",
        override: str | None = None,
        **hyperparameters: object,
    ) -> Choice:
        """The implementation to use for a problem; see `selector.choose`."""
        self._refresh()
        if override is None:
            override = os.environ.get(f"SELECTOR_OVERRIDE_{operator or DEFAULT_OPERATOR}".upper()) or None
        arguments = operator, device, memory, objective, override
        try:
            return self._cached(*arguments, **hyperparameters)
        except TypeError:  # an argument that cannot be hashed: a Device, or one that is refused below
            return _decide(self._knowledge, *arguments, **hyperparameters)

    def operators(self) -> list[dict[str, Any]]:
        """JSON-ready descriptions of the operators, with their implementations."""
        return [
            {
                **operator.describe(),
                "implementations": [
                    {"name": item.name, "summary": item.summary, "default": item.default}
                    for item in registry.implementations(name).values()
                ],
            }
            for name, operator in registry.operators().items()
        ]

    def devices(self) -> list[dict[str, Any]]:
        """JSON-ready: known devices and measured ones, each with `measured` and its name in torch if here."""
        from kernel_selector.kernels.devices import known_devices

        from .devices import torch_name

        self._refresh()
        measured = [(device, True) for device in self._knowledge.devices]
        keys = {device.key for device, _ in measured}
        known = [(device, False) for key, device in known_devices().items() if key not in keys]
        return [
            {**device.to_dict(), "key": device.key, "measured": seen, "torch_device": torch_name(device)}
            for device, seen in (*measured, *known)
        ]

    def status(self) -> dict[str, Any]:
        """JSON-ready: the database, its snapshot, how much it holds, the models."""
        self._refresh()
        state: dict[str, Any] = {
            "database": self._open.location if self._open else None,
            "snapshot": self.snapshot,
            "frozen": self.frozen,
            "caveats": list(self._knowledge.caveats),
            "records": 0,
            "models": [],
        }
        if self._open is not None:
            from kernel_selector import db

            with self._open.read() as connection:
                state["records"] = db.records.total(connection)
                state["models"] = [
                    {**model, "created_at": model["created_at"].isoformat()}
                    for model in db.models.listing(connection)
                ]
        return state

    def reload(self) -> None:
        """Take a new snapshot now, also when frozen."""
        self._load()

    def close(self) -> None:
        """Close the database if this selector opened it."""
        with self._lock:
            if self._open is not None and self._open is not self._source:
                self._open.close()
            self._open = None

    def _load(self) -> None:
        """Open the database if need be and take its state; answers given before are forgotten."""
        from kernel_selector import db

        with self._lock:
            try:
                if self._open is None:
                    self._open = (
                        self._source
                        if isinstance(self._source, db.Database)
                        else db.Database.open(self._source)
                    )
                self._stamp = self._open.stamp()
                knowledge = Knowledge(self._open, complete=self.frozen)
            except db.DatabaseMissing as error:
                if self._source is not None:
                    raise
                # not an error before the first measurement; the message names the place
                knowledge = Knowledge(None, missing=f"There are no measurements yet. {error}")
            self._knowledge = knowledge
            self._checked = time.monotonic()
            self._cached = lru_cache(CACHE_SIZE, typed=True)(partial(_decide, knowledge))

    def _refresh(self) -> None:
        """Reload when the database has changed, looking at most once in CHECK_S."""
        if self.frozen or time.monotonic() - self._checked < CHECK_S:
            return
        with self._lock:
            if time.monotonic() - self._checked < CHECK_S:
                return
            self._checked = time.monotonic()
            if self._changed():
                self._load()

    def _changed(self) -> bool:
        if self._open is None:
            return True
        stamp = self._open.stamp()
        if stamp is not None:
            return stamp != self._stamp
        from kernel_selector import db

        with self._open.read() as connection:
            return db.snapshot(connection) != self.snapshot


def _decide(
    knowledge: Knowledge,
    operator: str | None,
    device: object,
    memory: str | int | None,
    objective: str,
    override: str | None,
    /,
    **hyperparameters: object,
) -> Choice:
    return answer(knowledge, parse(knowledge, operator, device, memory, objective, override, hyperparameters))
