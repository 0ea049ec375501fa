"""What of a database still holds, and what is measured again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernel_selector.db import Database, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.devices import known_devices
from selector.profiling.freshness import freshness, refresh_jobs, refresh_plan, runner_up_ratio
from tests.selector import replay

PROBLEMS = list(replay.problems(hidden=(64, 128), batch=(8,), seq=(10,), layers=(1,), mode=("training",)))
HERE = {replay.HERE.fingerprint: replay.SOFTWARE}
ALL = len(replay.ON_CPU)


def stored(database: Database, *found) -> None:
    with database.write() as connection:
        records.add(connection, found)


def row(database: Database, here=HERE):
    (found,) = freshness(database, here=here)
    return found


def jobs(database: Database, environment=replay.SOFTWARE):
    return refresh_jobs(database, replay.HERE, environment)


def test_what_was_just_measured_holds(sqlite_database: Database) -> None:
    stored(sqlite_database, *replay.sweep(PROBLEMS))
    found = row(sqlite_database)
    assert (found.operator, found.device_key, found.here) == ("lstm", replay.HERE.key, True)
    assert (found.problems, found.pairs, found.current) == (2, 2 * ALL, 2 * ALL)
    assert (found.older_sources, found.older_software, found.changes) == (0, 0, ())
    assert set(found.unmeasured) == set(registry.implementations("lstm")) - set(replay.ON_CPU)
    assert jobs(sqlite_database) == []


@pytest.mark.parametrize("change", [{"driver": "600.1"}, {"torch": "9.9.9"}, {"triton": "9.9"}])
def test_other_software_makes_all_of_it_old_and_says_what_changed(sqlite_database, change) -> None:
    stored(sqlite_database, *replay.sweep(PROBLEMS))
    updated = replace(replay.SOFTWARE, **change)
    found = row(sqlite_database, {replay.HERE.fingerprint: updated})
    assert (found.current, found.older_software) == (0, 2 * ALL)
    ((name, value),) = change.items()
    before = getattr(replay.SOFTWARE, name)
    assert found.changes == (f"{name} {before} instead of {value}",)
    again = jobs(sqlite_database, updated)
    assert {job.problem for job in again} == set(PROBLEMS)
    assert all(set(job.implementations) == set(replay.ON_CPU) for job in again)


def test_other_sources_make_their_own_measurements_old_alone(sqlite_database: Database) -> None:
    found = [
        replace(record, implementation_version="0" * 12) if record.implementation == "hoisted" else record
        for record in replay.sweep(PROBLEMS)
    ]
    stored(sqlite_database, *found)
    seen = row(sqlite_database)
    assert (seen.current, seen.older_sources, seen.older_software) == (2 * (ALL - 1), 2, 0)
    assert seen.changes == ("hoisted was changed",)
    assert {job.implementations for job in jobs(sqlite_database)} == {("hoisted",)}


def test_what_was_measured_again_holds_again(sqlite_database: Database) -> None:
    old = replace(replay.SOFTWARE, torch="1.0.0")
    for environment in (old, replay.SOFTWARE):
        stored(
            sqlite_database,
            *(replace(record, environment=environment) for record in replay.sweep(PROBLEMS)),
        )
    assert row(sqlite_database).current == 2 * ALL
    assert jobs(sqlite_database) == []


def test_another_host_has_other_threads_and_no_older_software(sqlite_database: Database) -> None:
    stored(sqlite_database, *replay.sweep(PROBLEMS))
    elsewhere = replace(replay.HERE, host="Another x4")
    more = replace(replay.SOFTWARE, threads=2 * replay.SOFTWARE.threads)
    for record in replay.sweep(PROBLEMS):
        stored(sqlite_database, replace(record, device=elsewhere, environment=more))
    for here in (HERE, {}, {elsewhere.fingerprint: more}):
        assert (row(sqlite_database, here).current, row(sqlite_database, here).changes) == (2 * ALL, ())
    fewer = {replay.HERE.fingerprint: replace(replay.SOFTWARE, threads=1, driver="600.1")}
    found = row(sqlite_database, fewer)
    assert (found.older_software, found.here) == (2 * ALL, True)
    assert "threads" in " ".join(found.changes)  # of this host there were more before


def test_close_races_are_measured_first(sqlite_database: Database) -> None:
    close, clear = PROBLEMS
    old = replace(replay.SOFTWARE, driver="1.0")
    for problem, second in ((clear, 2.0), (close, 1.01)):
        for name, time_ms in (("torch_lstm", 1.0), ("hoisted", second)):
            stored(sqlite_database, replay.record(problem, name, time_ms=time_ms, environment=old))
    assert [job.problem for job in jobs(sqlite_database)] == [close, clear]
    assert runner_up_ratio([3.0, 2.0, 4.0]) == 1.5
    assert runner_up_ratio([3.0]) == float("inf")


def test_elsewhere_the_newest_software_is_the_devices(sqlite_database: Database) -> None:
    old = replace(replay.SOFTWARE, driver="1.0")
    first, second = PROBLEMS
    stored(sqlite_database, replace(replay.record(first, "torch_lstm"), environment=old))
    later = replay.record(second, "torch_lstm")
    stored(sqlite_database, replace(later, measured_at=later.measured_at.replace(year=2030)))
    found = row(sqlite_database, here={})
    assert (found.here, found.pairs, found.current, found.older_software) == (False, 2, 1, 1)


def test_a_plan_for_a_device_elsewhere_has_all_implementations_of_what_is_old(
    sqlite_database: Database,
) -> None:
    h200 = replace(known_devices()["nvidia-h200"], host="Another x4")
    old = PROBLEMS[0]
    for problem in PROBLEMS:
        names = ("hoisted", "torch_lstm")
        stored(sqlite_database, *(replay.record(problem, name, time_ms=1.0, device=h200) for name in names))
    assert refresh_plan(sqlite_database, "h200") == []
    before = replay.record(old, "fused", time_ms=1.0, device=h200)
    stored(sqlite_database, replace(before, implementation_version="0" * 12))
    (job,) = refresh_plan(sqlite_database, "h200")
    assert (job.problem, job.implementations) == (old, ("fused", "hoisted", "torch_lstm"))
    assert refresh_plan(sqlite_database, "cpu") == []
