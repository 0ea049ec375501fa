"""Runs over one list and database at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest

import pytest

from kernel_selector.db import Database
from kernel_selector.kernels.measure.jobs import Job
from selector.profiling.run import InTurn, Run
from selector.workloads.sampling import grid
from tests.selector.replay_session import ReplaySession

PROBLEMS = grid("lstm", {"hidden": "32,64,96,128", "batch": "1,8,16"})
NAMES = ("torch_lstm", "hoisted", "unfused")
JOBS = [Job(problem, NAMES) for problem in PROBLEMS]


def in_lock_step(database: Database, runs: int, *, active: bool = False) -> list[ReplaySession]:
    """Sessions of runs that measure a candidate each in turns."""
    sessions = [ReplaySession() for _ in range(runs)]
    events: list[Iterator[object]] = [Run(database, one, active=active).events(JOBS) for one in sessions]
    for _ in zip_longest(*events):
        pass
    return sessions


@pytest.mark.parametrize(("runs", "twice"), [(2, 2), (3, 12)])
def test_runs_in_lock_step_share_the_list(sqlite_database: Database, runs: int, twice: int) -> None:
    """Two measure the first problem both and the one where they meet; three, by chance, a few more."""
    sessions = in_lock_step(sqlite_database, runs)
    times = Counter(one for session in sessions for one in session.measured)
    assert len(times) == len(PROBLEMS) * len(NAMES)
    assert times.total() - len(times) <= twice * len(NAMES)
    assert all(len(session.measured) < len(times) for session in sessions)


def test_runs_in_lock_step_that_are_active_propose_other_problems(sqlite_database: Database) -> None:
    sessions = in_lock_step(sqlite_database, 2, active=True)
    times = Counter(one for session in sessions for one in session.measured)
    assert times.total() - len(times) < len(times) / 2


def test_a_run_alone_keeps_the_order_of_the_list(sqlite_database: Database) -> None:
    session = ReplaySession()
    list(Run(sqlite_database, session).events(JOBS))
    assert session.measured == [(problem.key, name) for problem in PROBLEMS for name in NAMES]


def test_measuring_again_is_what_each_run_was_asked_for(sqlite_database: Database) -> None:
    sessions = [ReplaySession(), ReplaySession()]
    for session in sessions:
        list(Run(sqlite_database, session, again=True).events(JOBS))
    assert all(len(one.measured) == len(PROBLEMS) * len(NAMES) for one in sessions)


def test_an_order_that_moves_on_leaves_nothing_out() -> None:
    order = InTurn.of(dict.fromkeys(PROBLEMS, NAMES))
    taken = []
    for problem, _ in order:
        taken.append(problem)
        if len(taken) in (1, 5, len(PROBLEMS)):
            order.part()
    assert taken[1] != PROBLEMS[1]
    assert sorted(taken, key=PROBLEMS.index) == PROBLEMS
