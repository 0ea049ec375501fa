"""Devices and database contents as plain dictionaries, for command lines and services."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .profile import opened

if TYPE_CHECKING:
    from kernel_selector.db import Database


def known_devices() -> list[dict[str, Any]]:
    """Devices of the shipped table."""
    from kernel_selector.kernels import devices

    return [{"key": key, **device.to_dict()} for key, device in devices.known_devices().items()]


def local_devices() -> list[dict[str, Any]]:
    """Torch devices of this machine with measured rates; measuring takes seconds."""
    from kernel_selector.kernels import measure

    from ..selection.devices import local_names

    probed = {name: measure.probe(name) for name in local_names()}
    return [{"torch_device": name, "key": one.key, **one.to_dict()} for name, one in probed.items()]


def database_status(database: Database | str | Path | None = None) -> dict[str, Any]:
    """Location and contents of the database.

    Raises DatabaseError, for example when it is missing.
    """
    from kernel_selector.db import records, snapshot

    from ..cost_model.stored_models import model_listing

    with opened(database) as store, store.read() as connection:
        return {
            "location": store.location,
            "records": records.total(connection),
            "counts": [_plain(row) for row in records.counts(connection)],
            "imported": imported_listing(connection),
            "models": [_plain(row) for row in model_listing(connection)],
            "snapshot": snapshot(connection),
        }


def imported_listing(connection: Any) -> list[dict[str, Any]]:
    """Imported operators with their devices and numbers of measurements."""
    from ..workloads.imported_operator import imported_operators

    return [
        {"operator": item.name, "devices": list(item.devices), "count": item.rows}
        for item in imported_operators(connection).values()
    ]


def upgrade_database(database: Database | str | Path | None = None) -> str:
    """Location of the database, made or upgraded to this version's revision."""
    with opened(database, create=True) as store:
        return store.location


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in row.items()}
