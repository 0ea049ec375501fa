"""Profiling: resumable, within its budget, and nothing measured is lost."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from kernel_selector.db import Database, records
from kernel_selector.kernels import registry
from selector.profiling import profile as profiling
from selector.profiling import run as profiling_run
from selector.profiling.profile import (
    CandidateMeasured,
    ProblemStarted,
    ProblemStored,
    ProfilingFinished,
    ProfilingStarted,
    profile_with,
)
from selector.workloads.sampling import grid
from tests.selector import replay
from tests.selector.replay_session import ReplaySession

PROBLEMS = grid("lstm", {"hidden": "32,64", "batch": "1,8"})
CANDIDATES = len(registry.implementations("lstm"))


def run(database: Database, session: ReplaySession, **options) -> list:
    return list(profile_with("lstm", PROBLEMS, store=database, measuring=session, **options))


def stored(database: Database) -> int:
    with database.read() as connection:
        return records.total(connection)


def test_every_candidate_of_every_problem_is_measured_and_stored(sqlite_database: Database) -> None:
    events = run(sqlite_database, ReplaySession())
    assert isinstance(events[0], ProfilingStarted)
    assert events[0].problems == 4
    assert sum(isinstance(event, CandidateMeasured) for event in events) == 4 * CANDIDATES
    assert [event.index for event in events if isinstance(event, ProblemStored)] == [1, 2, 3, 4]
    finished = events[-1]
    assert isinstance(finished, ProfilingFinished)
    assert finished.statuses == {"ok": 4 * CANDIDATES}
    assert (finished.measured, finished.remaining) == (4, 0)
    assert stored(sqlite_database) == 4 * CANDIDATES


def test_records_are_in_the_database_before_the_next_problem_starts(sqlite_database: Database) -> None:
    events = profile_with("lstm", PROBLEMS, store=sqlite_database, measuring=ReplaySession())
    for event in events:
        if isinstance(event, ProblemStarted):
            assert stored(sqlite_database) == (event.index - 1) * CANDIDATES


def test_a_second_run_measures_nothing(sqlite_database: Database) -> None:
    run(sqlite_database, ReplaySession())
    again = ReplaySession()
    finished = run(sqlite_database, again)[-1]
    assert again.measured == []
    assert (finished.measured, finished.skipped) == (0, 4)


def test_only_missing_implementations_are_measured(sqlite_database: Database) -> None:
    first = PROBLEMS[0]
    names = list(registry.implementations("lstm"))
    list(profiling.measure_into(sqlite_database, ReplaySession(), first, names[:-1]))
    session = ReplaySession()
    run(sqlite_database, session)
    assert [name for key, name in session.measured if key == first.key] == [names[-1]]


@pytest.mark.parametrize("after", [0, 1, CANDIDATES, CANDIDATES + 2])
def test_ctrl_c_loses_no_record_and_the_next_run_goes_on(sqlite_database: Database, after: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(sqlite_database, ReplaySession(interrupt_after=after))
    assert stored(sqlite_database) == after
    session = ReplaySession()
    run(sqlite_database, session)
    assert len(session.measured) == 4 * CANDIDATES - after
    assert stored(sqlite_database) == 4 * CANDIDATES


def test_a_consumer_that_stops_listening_loses_no_record(sqlite_database: Database) -> None:
    events = profile_with("lstm", PROBLEMS, store=sqlite_database, measuring=ReplaySession())
    list(itertools.islice((event for event in events if isinstance(event, CandidateMeasured)), 2))
    events.close()
    assert stored(sqlite_database) == 2


def test_the_budget_ends_a_run_between_problems(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=1.0)
    monkeypatch.setattr(profiling_run, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    events = run(sqlite_database, ReplaySession(), budget_s=12.0)
    finished = events[-1]
    assert 0 < finished.measured < 4
    assert finished.remaining == 4 - finished.measured
    assert stored(sqlite_database) == finished.measured * CANDIDATES
    left = [event.left_s for event in events if isinstance(event, ProblemStarted)]
    assert all(0 <= seconds <= 12 for seconds in left)
    assert left == sorted(left, reverse=True)


def test_an_unknown_operator_is_refused_before_anything_is_made(tmp_path) -> None:
    from selector import UnknownOperator, profile

    with pytest.raises(UnknownOperator, match="lstmm"):
        list(profile("lstmm", [], database=tmp_path / "new.sqlite"))
    assert not (tmp_path / "new.sqlite").exists()


def test_measuring_for_real_on_the_cpu(tmp_path) -> None:
    from selector import profile

    problems = grid("lstm", {"hidden": "5", "batch": "2", "seq": "3", "mode": "inference"})
    finished = list(profile("lstm", problems, device="cpu", database=tmp_path / "new.sqlite"))[-1]
    accepted = len(replay.ON_CPU)
    assert finished.statuses == {"ok": accepted, "unsupported": CANDIDATES - accepted}
