"""Measurements of earlier versions that do the same as the present ones count, wherever they are read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernel_selector.db import Database, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.versions import aliases
from kernel_selector.service.pages.winners import ComparedProblems
from selector.profiling.freshness import freshness, refresh_jobs
from selector.selection.evidence import Evidence
from selector.selection.records import pooled
from tests.selector import replay

OLD = "feedfeedfeed"
PROBLEMS = list(replay.problems(hidden=(64, 128), batch=(8,), seq=(10,), layers=(1,), mode=("training",)))
NOW = {name: one.version for name, one in registry.implementations("lstm").items()}


@pytest.fixture(autouse=True)
def _alias(monkeypatch):
    known = {("lstm", name): {OLD: version} for name, version in NOW.items()}
    monkeypatch.setattr(aliases, "successors", lambda: known)
    aliases._followed.cache_clear()
    yield
    aliases._followed.cache_clear()


def swept(version=OLD):
    return [replace(one, implementation_version=version) for one in replay.sweep(PROBLEMS)]


def test_they_hold_in_a_database_and_are_not_measured_again(sqlite_database: Database) -> None:
    with sqlite_database.write() as connection:
        records.add(connection, swept())
    here = {replay.HERE.fingerprint: replay.SOFTWARE}
    (found,) = freshness(sqlite_database, here=here)
    assert (found.current, found.older_sources) == (found.pairs, 0)
    assert refresh_jobs(sqlite_database, replay.HERE, replay.SOFTWARE) == []
    with sqlite_database.read() as connection:  # as they were stored
        assert {one.implementation_version for one in records.find(connection)} == {OLD}


def test_they_are_evidence_as_new_ones_are() -> None:
    old, new = Evidence(swept(), NOW), Evidence(replay.sweep(PROBLEMS), NOW)
    for problem in PROBLEMS:
        tiers = [list(one.measured(problem, replay.HERE, replay.SOFTWARE)) for one in (old, new)]
        assert tiers[0] == tiers[1]
        assert tiers[0][0].source == "exact"
    operator = registry.operator("lstm")
    assert ComparedProblems(old, operator).found == ComparedProblems(new, operator).found


def test_visits_of_old_and_new_versions_are_taken_together() -> None:
    both = [*swept(), *replay.sweep(PROBLEMS)]
    assert len(list(pooled(both))) == len(both) // 2


def test_versions_without_an_alias_do_not_count() -> None:
    tiers = list(Evidence(swept("0" * 12), NOW).measured(PROBLEMS[0], replay.HERE, replay.SOFTWARE))
    assert "Measured with an earlier version of" in tiers[0].caveats[-1]
