"""Rows that many measurements refer to, stored once: found or added by their natural keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import select
from sqlalchemy.engine import Connection

from kernel_selector.kernels.contract import Device, Record

from . import rows
from .bulk import LOOKUP, insert_new
from .hashing import content_hash
from .schema import measurements as tables

Key = tuple[str, ...]


class SharedRows:
    """Ids of problems, implementations, devices and environments, remembered during one call of `add`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._problems: dict[Key, int] = {}
        self._implementations: dict[Key, int] = {}
        self._devices: dict[Key, int] = {}
        self._environments: dict[Key, int] = {}

    def references(self, batch: list[Record]) -> list[tuple[Key, dict[str, int]]]:
        """For each record the natural keys of what it refers to, and their ids as columns.

        Raises CorruptRecord for a problem that no operator has.
        """
        problems = {(record.problem.key,): record.problem for record in batch}
        for problem in {id(record.problem): record.problem for record in batch}.values():
            problem.check()  # before its key is trusted: 512 and "512" have the same
        environments = {(record.environment.fingerprint,): record.environment for record in batch}
        implementations = {_implementation_key(record) for record in batch}
        hashes = _device_hashes(record.device for record in batch)
        devices = {(hashes[id(record.device)],): record.device for record in batch}
        self._ensure(
            tables.Problem,
            ("key",),
            self._problems,
            {
                key: rows.problem_row(problem)
                for key, problem in problems.items()
                if key not in self._problems
            },
        )
        self._ensure(
            tables.Implementation,
            ("name", "operator", "version"),
            self._implementations,
            {key: dict(zip(("name", "operator", "version"), key, strict=True)) for key in implementations},
        )
        self._ensure(
            tables.Device,
            ("content_hash",),
            self._devices,
            {key: {"content_hash": key[0]} | rows.device_row(device) for key, device in devices.items()},
        )
        self._ensure(
            tables.Environment,
            ("fingerprint",),
            self._environments,
            {key: rows.environment_row(environment) for key, environment in environments.items()},
        )
        return [self._reference(natural_key(record, hashes[id(record.device)])) for record in batch]

    def _reference(self, key: Key) -> tuple[Key, dict[str, int]]:
        problem, *implementation, device_hash, environment = key
        ids = {
            "problem_id": self._problems[problem,],
            "implementation_id": self._implementations[tuple(implementation)],
            "device_id": self._devices[device_hash,],
            "environment_id": self._environments[environment,],
        }
        return key, ids

    def _ensure(
        self,
        table: type[tables.Base],
        columns: tuple[str, ...],
        known: dict[Key, int],
        wanted: dict[Key, dict[str, Any]],
    ) -> None:
        """Make the ids of all wanted keys known, adding the rows that are not there yet."""
        missing = {key: row for key, row in wanted.items() if key not in known}
        if not missing:
            return
        for row in missing.values():
            rows.canonical(row)  # refuses what a database cannot hold
        insert_new(self._connection, table, list(missing.values()))
        selected = [table.__table__.c[name] for name in columns]
        firsts = sorted({key[0] for key in missing})
        for start in range(0, len(firsts), LOOKUP):
            query = select(table.id, *selected).where(selected[0].in_(firsts[start : start + LOOKUP]))
            known.update({tuple(key): number for number, *key in self._connection.execute(query)})


def natural_key(record: Record, device_hash: str | None = None) -> Key:
    """Natural keys of the rows that a record refers to.

    Raises CorruptRecord for a device that no database can hold.
    """
    hashed = device_hash or content_hash(rows.device_row(record.device))
    return (record.problem.key, *_implementation_key(record), hashed, record.environment.fingerprint)


def _implementation_key(record: Record) -> Key:
    return record.implementation, record.problem.operator, record.implementation_version


def _device_hashes(devices: Iterable[Device]) -> dict[int, str]:
    """Content hash of each device by its `id`: most records share few objects, and hashing is slow."""
    distinct = {id(device): device for device in devices}
    return {number: content_hash(rows.device_row(device)) for number, device in distinct.items()}
