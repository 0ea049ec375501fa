"""Figures read as columns are the evidence that whole records would be."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from kernel_selector.db import Database, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Record, Status
from selector.selection.evidence import Evidence
from tests.selector import replay

VERSIONS = {name: item.version for name, item in registry.implementations("lstm").items()}


def again(record: Record, *, hours: float, factor: float = 1.0, **changes: object) -> Record:
    """The record as if measured some hours later, by so many times the time."""
    slower = {
        name: replace(timing, p20_ms=timing.p20_ms / 2, p80_ms=timing.p80_ms * factor)
        for name in ("forward", "forward_backward")
        if (timing := getattr(record, name)) is not None
    }
    return replace(record, measured_at=record.measured_at + timedelta(hours=hours), **slower, **changes)


def all_kinds() -> list[Record]:
    """Measured again before and after, at the same time, by another version, on another probe, elsewhere."""
    first = replay.recorded()[:120]
    found = list(first)
    for number, record in enumerate(first):
        device = replace(record.device, launch_us=99.0)
        found += [
            [again(record, hours=2, factor=3)],
            [again(record, hours=-2, factor=3)],
            [again(record, hours=0, factor=2), again(record, hours=0, factor=4)],
            [again(record, hours=1, implementation_version="of another day")],
            [again(record, hours=1, device=device), again(record, hours=2, factor=2)],
            [again(record, hours=1, device=replace(device, host="elsewhere"))],
            [again(record, hours=1, status=Status.CRASHED, reason="signal 11")],
            [again(record, hours=1, policy="thorough")],
        ][number % 8]
    return found


@pytest.mark.parametrize("place", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_the_newest_figures_are_the_evidence_of_all_records(tmp_path, request, place):
    url = request.getfixturevalue("postgres_url") if place == "postgresql" else tmp_path / "records.sqlite"
    made = all_kinds()
    with Database.open(url, create=True) as database:
        with database.write() as connection:
            assert records.add(connection, made) == len(made)
        with database.read() as connection:
            for device_key in {record.device.key for record in made}:
                asked = {"operator": "lstm", "device_key": device_key}
                whole = Evidence(records.find(connection, **asked), VERSIONS)
                kept = list(records.newest(connection, **asked))
                columns = Evidence(kept, VERSIONS)
                assert columns.groups == whole.groups
                assert columns.settings == whole.settings
                assert columns.problems == whole.problems
                assert len(kept) < sum(record.device.key == device_key for record in made)
            assert not list(records.newest(connection, operator="gru", device_key=made[0].device.key))
            assert not list(records.newest(connection, operator="lstm", device_key="no such"))
