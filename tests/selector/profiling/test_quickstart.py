"""The whole path, on a replayed machine and, with tiny problems, on this one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_selector.db import Database, models, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Space
from selector import quickstart
from selector.profiling import profile as profiling
from selector.profiling import quickstart as onboarding
from selector.profiling import verification as blind_check
from selector.profiling.profile import ProfilingFinished
from selector.profiling.quickstart import QuickstartFinished, TrainingFinished, TrainingStarted
from selector.profiling.verification import Checked, CheckStarted, geometric_mean
from selector.workloads.sampling import grid, random_problems
from tests.selector import replay
from tests.selector.replay_session import ReplaySession

pytestmark = pytest.mark.usefixtures("quick_learner")

TINY = Space(
    sizes={"hidden": (4, 24), "batch": (1, 4), "seq": (2, 4)},
    sometimes={},
    values={"mode": ("inference", "inference", "training")},
    max_flops=1e6,
)


Ran = tuple[Database, QuickstartFinished, list]


@pytest.fixture
def replayed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ReplaySession:
    request.getfixturevalue("here")
    session = ReplaySession()
    monkeypatch.setattr(profiling, "session", lambda *_: nullcontext(session))
    return session


@pytest.fixture(scope="module")
def first_run() -> dict[Path, tuple[QuickstartFinished, list]]:
    """File that the first test to ask for it has run in, and how it ended; empty before."""
    return {}


@pytest.fixture
def ran(
    replayed: ReplaySession,
    first_run: dict[Path, tuple[QuickstartFinished, list]],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Ran]:
    """Database in which it has run, how it ended, and its events; the session has forgotten it."""
    if not first_run:
        path = tmp_path_factory.mktemp("quickstart") / "first.sqlite"
        with Database.open(path, create=True) as database:
            first_run[path] = run(database)
    ((path, ended),) = first_run.items()
    replayed.measured.clear()
    with Database.open(shutil.copyfile(path, tmp_path / "ran.sqlite")) as database:
        yield (database, *ended)


def run(database: Database, **options) -> tuple[QuickstartFinished, list]:
    events = list(quickstart(database=database, **{"problems": 20, "checks": 4, **options}))
    assert isinstance(events[-1], QuickstartFinished)
    return events[-1], events


def of(events: list, kind: type) -> list:
    return [event for event in events if isinstance(event, kind)]


def test_it_profiles_learns_and_checks(ran: Ran) -> None:
    _, finished, events = ran
    assert of(events, ProfilingFinished)[0].measured == 20
    learned = of(events, TrainingFinished)[0]
    assert learned.fresh
    assert learned.evaluation["comparisons"][0]["selectors"]["cost model"]["gmean"] >= 1
    assert len(finished.checks) == 4
    assert all(row.slowdown >= 1 and row.default_slowdown >= 1 for row in finished.checks)
    assert {row.source for row in finished.checks} <= {"near", "model", "extrapolated", "default"}
    assert finished.to_dict()["geometric_mean_slowdown"] == finished.slowdown


def test_choices_are_made_before_their_problem_is_measured(
    sqlite_database: Database, replayed: ReplaySession
) -> None:
    events = quickstart(database=sqlite_database, problems=20, checks=3)
    for event in events:
        if isinstance(event, CheckStarted):
            assert not any(key == event.problem.key for key, _ in replayed.measured)


def test_again_measures_nothing_and_shows_the_same_table(ran: Ran, replayed: ReplaySession) -> None:
    database, first, _ = ran
    second, events = run(database)
    assert replayed.measured == []
    assert not of(events, TrainingStarted)
    assert [replace(row, stored=False) for row in second.checks] == list(first.checks)
    assert all(row.stored for row in second.checks)


def test_a_model_that_has_seen_the_check_is_not_asked(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    from selector.training import train as learning

    database, _, _ = ran
    learning.train("lstm", database)  # on the records of the check, too
    with database.read() as connection:
        peeked = models.latest(connection, operator="lstm").version
    asked = []
    choose = blind_check._compare
    monkeypatch.setattr(
        blind_check,
        "_compare",
        lambda choice, *rest, **more: asked.append(choice) or choose(choice, *rest, **more),
    )
    run(database)
    assert asked
    assert peeked not in {choice.model_version for choice in asked}
    assert "exact" not in {choice.source for choice in asked}


@pytest.mark.usefixtures("replayed")
def test_a_larger_run_after_a_short_one_trains_again(sqlite_database: Database) -> None:
    run(sqlite_database, problems=15)
    _, events = run(sqlite_database, problems=20)
    assert of(events, ProfilingFinished)[0].measured == 5
    assert of(events, TrainingFinished)[0].fresh


@pytest.mark.usefixtures("replayed")
def test_too_few_records_for_a_model_are_said(sqlite_database: Database) -> None:
    finished, events = run(sqlite_database, problems=2, checks=2)
    learned = of(events, TrainingFinished)[0]
    assert learned.evaluation is None
    assert "larger --budget" in learned.reason
    assert "selector quickstart" not in learned.reason
    assert len(finished.checks) == 2


@pytest.mark.usefixtures("replayed")
def test_without_time_for_the_check_it_says_what_is_left_out(sqlite_database: Database) -> None:
    finished, _ = run(sqlite_database, budget_s=1e-9)
    assert finished.checks == ()
    assert finished.unchecked == 4
    assert finished.slowdown is None


def test_profiled_and_checked_problems_are_apart() -> None:
    profiled = random_problems("lstm", "cpu", count=onboarding.PROBLEMS, seed=onboarding.PROFILE_SEED)
    keys = frozenset(problem.key for problem in profiled)
    checked = random_problems("lstm", "cpu", count=12, seed=onboarding.CHECK_SEED, exclude=keys)
    assert len(checked) == 12
    assert not keys & {problem.key for problem in checked}


def test_a_failed_choice_counts_as_failed() -> None:
    problem = grid("lstm", {"hidden": "8", "batch": "1"})[0]
    row = Checked(
        problem=problem,
        choice="hoisted",
        source="model",
        predicted_ms=1.0,
        measured_ms=None,
        best="torch_lstm",
        best_ms=2.0,
        default_ms=2.0,
        stored=False,
    )
    assert row.slowdown is None
    assert row.to_dict()["slowdown"] is None
    assert geometric_mean([None, 2.0, 8.0]) == pytest.approx(4.0)


def test_for_real_on_the_cpu(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.operator("lstm").spaces, "cpu", TINY)
    finished, events = run(sqlite_database, device="cpu", problems=11, checks=2, budget_s=120)
    assert of(events, ProfilingFinished)[0].statuses["ok"] > 0
    assert len(finished.checks) == 2
    with sqlite_database.read() as connection:
        assert records.total(connection) >= 13


def test_a_check_that_was_cut_short_is_still_blind(ran: Ran, replayed: ReplaySession) -> None:
    database, first, _ = ran
    other = replay.record(first.checks[0].problem, "hoisted", time_ms=1e-6)
    with database.write() as connection:
        records.add(connection, records=[replace(other, implementation_version="of another day")])
    second, _ = run(database, checks=5)
    assert len({key for key, _ in replayed.measured}) == 1
    assert [row.stored for row in second.checks] == [True] * 4 + [False]
    assert [row.choice for row in second.checks[:4]] == [row.choice for row in first.checks]
