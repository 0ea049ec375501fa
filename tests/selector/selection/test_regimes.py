"""Measurements of layers compiled with neighbours, apart from those of layers launched one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kernel_selector.db import Database, freshness_rows, records, snapshot
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Record, Status
from selector import Selector
from selector.exchange import export as transfer
from selector.profiling.run import missing
from selector.profiling.winners import winners
from selector.selection.evidence import Evidence
from selector.selection.snapshot import Body
from selector.training.dataset import build_dataset
from tests.selector import replay
from tests.selector.replay_session import ReplaySession

LSTM = registry.operator("lstm")
VERSIONS = {name: one.version for name, one in registry.implementations("lstm").items()}
LATER = timedelta(hours=1)


def compiled(found: Iterable[Record]) -> list[Record]:
    """The records as if measured later, compiled with neighbours: the slowest a thousand times as fast."""
    made = []
    for record in found:
        total = record.total
        assert total is not None
        ms = 1e-3 / total.p50_ms
        timing = replace(total, p20_ms=ms, p50_ms=ms, p80_ms=ms, raw_ms=())
        times = {"forward": timing, "forward_backward": record.forward_backward and timing}
        made.append(replace(record, regime="compiled", measured_at=record.measured_at + LATER, **times))
    return made


def sweep() -> list[Record]:
    return list(replay.sweep(list(replay.problems(hidden=(64, 128, 100), batch=(8, 32), seq=(10,)))))


def answers(selector: Selector) -> list[dict[str, Any]]:
    """Choices of measured, near and other problems, without the id of all measurements."""
    asked = [{"hidden": hidden, "batch": batch, "seq": 10} for hidden in (64, 80, 700) for batch in (8, 100)]
    return [{**selector.choose("lstm", **one).to_dict(), "snapshot": ""} for one in asked]


@pytest.mark.usefixtures("here")
def test_compiled_records_change_no_choice_of_launched_layers(sqlite_database: Database) -> None:
    with sqlite_database.write() as connection:
        records.add(connection, sweep())
    before = answers(Selector(sqlite_database))
    failed = [
        replace(one, regime="compiled", status=Status.INCORRECT, reason="wrong", memory=None)
        for one in sweep()
        if one.implementation == before[0]["implementation"]
    ]
    with sqlite_database.write() as connection:
        assert records.add(connection, [*compiled(sweep()), *failed]) == len(sweep()) + len(failed)
    assert answers(Selector(sqlite_database)) == before
    assert answers(Selector(sqlite_database, frozen=True)) == before


@pytest.mark.usefixtures("here")
def test_compiled_records_alone_are_no_evidence_of_launched_layers(sqlite_database: Database) -> None:
    with sqlite_database.write() as connection:
        records.add(connection, compiled(sweep()))
    for found in answers(Selector(sqlite_database)):
        assert (found["source"], found["time_ms"]) == ("default", None)


@pytest.mark.usefixtures("here")
def test_an_earlier_state_takes_over_each_regime_by_itself(sqlite_database: Database) -> None:
    found, pair = sweep(), ("lstm", replay.HERE.key)
    half = len(found) // 2
    with sqlite_database.write() as connection:
        records.add(connection, [*found, *compiled(found[:half])])
    earlier = Body(sqlite_database, wanted=[pair])
    with sqlite_database.write() as connection:
        records.add(connection, compiled(found[half : half + 2]))
    later, anew = Body(sqlite_database, wanted=[pair], earlier=earlier), Body(sqlite_database, wanted=[pair])
    for regime in ("launched", "compiled", "graph"):
        mine, theirs = (body.measurements(*pair) for body in (later, anew))
        assert isinstance(mine, Evidence)
        assert isinstance(theirs, Evidence)
        mine, theirs = mine.in_regime(regime), theirs.in_regime(regime)
        assert mine.groups == theirs.groups
        assert mine.settings == theirs.settings
        assert bool(mine.problems) == (regime != "graph")


def test_nothing_learns_from_compiled_records() -> None:
    found = sweep()
    dataset = build_dataset(LSTM, [*found, *compiled(found)], [replay.HERE])
    assert dataset.records == build_dataset(LSTM, found, [replay.HERE]).records
    assert {one.regime for one in dataset.measured} == {"launched"}
    assert Evidence([*found, *compiled(found)], VERSIONS).groups == Evidence(found, VERSIONS).groups


def test_the_database_keeps_regimes_apart(sqlite_database: Database) -> None:
    found = sweep()[:3]
    with sqlite_database.write() as connection:
        records.add(connection, found)
        before = snapshot(connection)
        assert records.add(connection, compiled(found)) == 3
        assert snapshot(connection) != before
    with sqlite_database.read() as connection:
        assert list(records.find(connection)) == found
        assert list(records.find(connection, regime="compiled")) == compiled(found)
        assert list(records.find(connection, regime=None)) == [*found, *compiled(found)]
        kept = list(records.newest(connection, operator="lstm", device_key=replay.HERE.key))
        assert [one.regime for one in kept] == ["launched"] * 3 + ["compiled"] * 3
        stored = records.page(connection, after=0, limit=9, equal={"regime": "compiled"})
        assert [one.record for one in stored] == compiled(found)
        first, second = found[0], compiled(found)[0]
        for record in (first, second):
            times = records.times_by_author(connection, record, [record.implementation_version])
            assert record.total is not None
            assert times == {None: [record.total.undisturbed_ms]}
        asked: Mapping[str, Any] = {
            "operator": "lstm",
            "device": first.device,
            "environment": first.environment,
            "policy": first.policy,
        }
        finished = Counter(regime for *_, regime in records.finished(connection, **asked))
        assert finished == {"launched": 3, "compiled": 3}
        assert len(list(freshness_rows.freshness_rows(connection))) == 3


def test_regimes_survive_a_file_and_another_database(sqlite_database: Database, tmp_path: Path) -> None:
    found = [*sweep()[:3], *compiled(sweep()[:3])]
    with sqlite_database.write() as connection:
        records.add(connection, found)
    assert transfer.export(tmp_path / "all.jsonl", sqlite_database) == 6
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    assert [Record.from_json(line) for line in lines] == found
    with Database.open(tmp_path / "other.sqlite", create=True) as other:
        assert transfer.merge(sqlite_database, other).new.total() == 6
        assert transfer.merge(sqlite_database, other).new.total() == 0
        with other.read() as connection:
            assert list(records.find(connection, regime=None)) == found


def test_a_run_measures_what_is_missing_in_its_regime(sqlite_database: Database) -> None:
    problem = LSTM.problem(hidden=64, batch=8)
    found = list(replay.sweep([problem]))
    with sqlite_database.write() as connection:
        records.add(connection, found)
    session: Any = ReplaySession()
    waiting = set(VERSIONS) - {one.implementation for one in found}
    assert set(missing(sqlite_database, session, [problem])[problem]) == waiting
    assert winners(sqlite_database, session, [problem])["lstm"]
    session.policy = session.policy.in_regime("compiled")
    assert missing(sqlite_database, session, [problem]) == {problem: list(VERSIONS)}
    assert winners(sqlite_database, session, [problem]) == {"lstm": {}}
