"""Measuring again: everything is measured, the newest records count, older ones stay."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta

import pytest

from kernel_selector.db import Database, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Status
from selector import quickstart
from selector.profiling import profile as profiling
from selector.profiling.profile import ProfilingFinished, profile_with
from selector.profiling.quickstart import TrainingFinished
from selector.training.dataset import build_dataset
from selector.workloads.sampling import grid
from tests.selector import replay
from tests.selector.replay_session import ReplaySession

pytestmark = pytest.mark.usefixtures("quick_learner")

PROBLEMS = grid("lstm", {"hidden": "32,64", "batch": "1,8"})
CANDIDATES = len(registry.implementations("lstm"))
LATER = timedelta(days=1000)


def run(database: Database, session: ReplaySession, **options) -> ProfilingFinished:
    return list(profile_with("lstm", PROBLEMS, store=database, measuring=session, **options))[-1]


def test_again_measures_what_is_finished_and_keeps_the_older_records(sqlite_database: Database) -> None:
    run(sqlite_database, ReplaySession())
    again = ReplaySession()
    finished = run(sqlite_database, again, again=True)
    assert (finished.measured, finished.skipped) == (4, 0)
    assert len(again.measured) == 4 * CANDIDATES
    with sqlite_database.read() as connection:
        assert records.total(connection) == 8 * CANDIDATES


@pytest.mark.usefixtures("here")
def test_quickstart_again_measures_and_trains_anew(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ReplaySession()
    monkeypatch.setattr(profiling, "session", lambda *_: nullcontext(session))
    list(quickstart(database=sqlite_database, problems=15, checks=2))
    first = len(session.measured)
    events = list(quickstart(database=sqlite_database, problems=15, checks=2, again=True))
    assert len(session.measured) == 2 * first
    assert next(event for event in events if isinstance(event, TrainingFinished)).fresh
    assert len(events[-1].checks) == 2


def test_a_problem_that_another_process_measured_meanwhile_is_skipped(sqlite_database: Database) -> None:
    mine, theirs = ReplaySession(), ReplaySession()
    events = profile_with("lstm", PROBLEMS, store=sqlite_database, measuring=mine)
    next(events)  # the list of what to do is made
    run(sqlite_database, theirs)
    finished = list(events)[-1]
    assert len(mine.measured) == 0
    assert len(theirs.measured) == 4 * CANDIDATES
    assert (finished.measured, finished.skipped, finished.remaining) == (0, 4, 0)


def test_choices_rest_on_the_newest_record(selector_of) -> None:
    problem = next(replay.problems(hidden=(64,), batch=(8,)))
    old = [replay.record(problem, "torch_lstm", time_ms=2.0), replay.record(problem, "hoisted", time_ms=1.0)]
    new = [replay.record(problem, "hoisted", time_ms=4.0)]
    new = [replace(one, measured_at=one.measured_at + LATER) for one in new]
    choice = selector_of([*new, *old]).choose(**problem.as_dict)
    assert choice.implementation == "torch_lstm"


def test_a_failure_that_was_measured_again_and_worked_excludes_nothing_nearby(selector_of) -> None:
    problem, near = replay.problems(hidden=(64,), batch=(8, 9), seq=(50,), layers=(1,), mode=("training",))
    timeout = replay.failed(problem, "hoisted", Status.TIMEOUT)
    good = [replay.record(problem, name) for name in ("torch_lstm", "hoisted")]
    good[1] = replace(good[1], measured_at=timeout.measured_at + LATER)
    choice = selector_of([timeout, *good]).choose(**near.as_dict)
    assert all(one.excluded is None for one in choice.candidates if one.name == "hoisted")


@pytest.mark.parametrize("status", [Status.OK, Status.CRASHED])
def test_training_takes_the_newest_record_of_a_candidate_alone(status: Status) -> None:
    which = list(replay.problems(seq=(10,), layers=(1,)))
    found = replay.sweep(which)
    other = (
        replay.record(which[0], "hoisted", time_ms=123.0)
        if status is Status.OK
        else replay.failed(which[0], "hoisted", status)
    )
    newer = replace(other, measured_at=other.measured_at + LATER)
    dataset = build_dataset(registry.operator("lstm"), [newer, *found], [replay.HERE])
    mine = [
        record
        for record in dataset.records
        if record.problem == which[0] and record.implementation == "hoisted"
    ]
    assert mine == ([newer] if status is Status.OK else [])
