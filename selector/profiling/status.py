"""Contents of the database and devices as plain data, and an overview with freshness and next steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels.contract.errors import number_of

from ..selection.database import network_warning, same_database
from ..selection.knowledge import Knowledge
from ..selection.query_log import asked
from ..selection.shipped import VARIABLE, are_wanted
from ..selection.snapshot import Body
from .freshness import Freshness, freshness, refresh_jobs
from .profile import opened

if TYPE_CHECKING:
    from kernel_selector.db import Database

NOTHING_TO_CHECK = "There is nothing to check: name a database that is there."
FIRST = 3  # problems that are named


@dataclass(frozen=True, kw_only=True)
class Overview:
    """Rows by operator and device, and next steps in words with their commands.

    `imported` are the operators of measurements that others took, of which nothing can become old. `own` and
    `shipped` say in a line each how many measurements answers rest on: of this database, and of the package.
    """

    location: str
    own: str
    shipped: str
    rows: tuple[Freshness, ...]
    imported: tuple[dict[str, Any], ...]
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dictionary."""
        rows = [row.to_dict() for row in self.rows]
        return {
            "location": self.location,
            "own": self.own,
            "shipped": self.shipped,
            "rows": rows,
            "imported": list(self.imported),
            "advice": list(self.advice),
        }


def overview(database: Database | str | Path | None = None) -> Overview:
    """Overview of an existing database.

    Raises DatabaseError.
    """
    from kernel_selector.db import records

    with opened(database) as store:
        rows = tuple(freshness(store))
        with store.read() as connection:
            imported = tuple(imported_listing(connection))
            own = records.total(connection) + sum(one["count"] for one in imported)
        where = same_database(database)
        todo = [*_stale(store, where), *_questions(store, where)]
        if not rows and not imported:
            of_what = " of launched layers" if own else ""  # which the rows are about
            todo = [f"Nothing is measured{of_what}: selector quickstart{where}"]
        warning = network_warning(store.location)
        advice = (*([warning] if warning else []), *todo)
        return Overview(
            location=store.location,
            own=f"Own: {number_of(own, 'measurement')} in this database, which the rows are about.",
            shipped=shipped_words(),
            rows=rows,
            imported=imported,
            advice=advice,
        )


def shipped_words() -> str:
    """Line on the measurements that come with the package, and whether they count for answers."""
    knowledge = Knowledge(Body(None), shipped=are_wanted())
    if knowledge.shipped is None:
        return f"Shipped: {knowledge.unusable or f'left out, by {VARIABLE}.'}"
    devices = sorted({device.name for device in knowledge.shipped.devices})
    count = number_of(knowledge.shipped.records, "measurement")
    return f"Shipped: {count} on {', '.join(devices)} count for answers too, behind your own."


def _stale(store: Database, where: str) -> list[str]:
    """Next steps for stale measurements of this machine's devices."""
    from kernel_selector.kernels import measure

    from ..selection.devices import local_names

    lines = []
    for name in local_names():
        jobs = refresh_jobs(store, measure.identify(name), measure.current_environment(name))
        if jobs:
            first = "; ".join(job.problem.key for job in jobs[:FIRST])
            count = sum(len(job.implementations) for job in jobs)
            lines.append(
                f"{number_of(count, 'measurement')} of {number_of(len(jobs), 'problem')} "
                f"{'is' if count == 1 else 'are'} old: "
                f"selector refresh --device {name}{where} (first: {first})"
            )
    return lines


def _questions(store: Database, where: str) -> list[str]:
    """Next steps for logged questions about this machine's devices without a certain answer."""
    from kernel_selector.kernels import measure

    from ..selection.devices import local_names

    counts = {name: len(asked(store, measure.identify(name).key)) for name in local_names()}
    return [
        f"{number_of(count, 'question')} {'was' if count == 1 else 'were'} answered without being sure: "
        f"selector profile --asked --device {name}{where}"
        for name, count in counts.items()
        if count
    ]


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


def database_faults(database: Database | str | Path | None = None) -> tuple[str, list[str]]:
    """Location of the database, and what of it is not as it was stored."""
    from kernel_selector.db import integrity

    with opened(database, otherwise=NOTHING_TO_CHECK) as store, store.read() as connection:
        return store.location, list(integrity.faults(connection))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in row.items()}
