"""Sweeps beside each other, on a full disk, and where the choice is uncertain."""

from __future__ import annotations

import threading

import pytest

from kernel_selector.db import Database, DatabaseError, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.measure.jobs import Job
from selector.profiling.events import CandidateMeasured, ProfilingFinished, ProfilingStarted
from selector.profiling.run import Run
from selector.workloads.sampling import grid
from tests.selector import replay
from tests.selector.replay_session import ReplaySession

PROBLEMS = grid("lstm", {"hidden": "32,48,64,96", "batch": "1,8,32"})
NAMES = tuple(replay.ON_CPU)
JOBS = [Job(problem, NAMES) for problem in PROBLEMS]


def stored(database: Database) -> int:
    with database.read() as connection:
        return records.total(connection)


def test_two_sweeps_on_one_database_share_the_work_and_lose_nothing(tmp_path) -> None:
    with Database.open(tmp_path / "shared.sqlite", create=True):
        pass
    sessions = [ReplaySession(), ReplaySession()]

    def work(session: ReplaySession) -> None:
        with Database.open(tmp_path / "shared.sqlite") as database:
            list(Run(database, session).events(JOBS))

    threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Database.open(tmp_path / "shared.sqlite") as database:
        with database.read() as connection:
            found = {
                (one.problem.key, one.implementation) for one in records.find(connection, operator="lstm")
            }
        assert len(found) == len(JOBS) * len(NAMES)
        assert stored(database) >= len(found)


def test_a_full_disk_ends_the_run_and_keeps_what_was_stored(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, calls = records.add, []

    def full(*arguments, **options):
        calls.append(arguments)
        if len(calls) > 2:
            raise DatabaseError("the disk is full")
        return add(*arguments, **options)

    monkeypatch.setattr(records, "add", full)
    with pytest.raises(DatabaseError, match="the disk is full"):
        list(Run(sqlite_database, ReplaySession()).events(JOBS))
    assert stored(sqlite_database) == 2 * len(NAMES)
    monkeypatch.undo()
    session = ReplaySession()
    list(Run(sqlite_database, session).events(JOBS))
    assert len(session.measured) == (len(JOBS) - 2) * len(NAMES)


def test_only_the_named_implementations_run_and_the_report_says_who_won(sqlite_database: Database) -> None:
    pair = ("hoisted", "torch_lstm")
    jobs = [Job(problem, pair) for problem in PROBLEMS]
    started, *_, finished = Run(sqlite_database, ReplaySession()).events(jobs)
    assert isinstance(started, ProfilingStarted)
    assert started.operators == ("lstm",)
    assert isinstance(finished, ProfilingFinished)
    expected = [min(pair, key=lambda name: replay.record(one, name).total.undisturbed_ms) for one in PROBLEMS]
    wins = {name: expected.count(name) for name in pair if name in expected}
    assert finished.winners == {"lstm": wins}


def test_active_sampling_runs_fewer_candidates_and_refusals_come_along(sqlite_database: Database) -> None:
    every = tuple(registry.implementations("lstm"))
    jobs = [Job(problem, every) for problem in PROBLEMS]
    events = list(Run(sqlite_database, ReplaySession(), active=True).events(jobs))
    run = [event.record for event in events if isinstance(event, CandidateMeasured)]
    assert 0 < sum(one.implementation in NAMES for one in run) < len(PROBLEMS) * len(NAMES)
    assert {one.implementation for one in run} > set(NAMES)
    assert len({(one.problem, one.implementation) for one in run}) == len(run)


def test_active_sampling_goes_on_from_what_is_stored(sqlite_database: Database) -> None:
    list(Run(sqlite_database, ReplaySession()).events(JOBS))
    session = ReplaySession()
    finished = list(Run(sqlite_database, session, active=True).events(JOBS))[-1]
    assert session.measured == []
    assert finished.remaining == 0
