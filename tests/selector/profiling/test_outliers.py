"""What contradicts all other measurements is measured again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernel_selector.db import Database, records
from kernel_selector.kernels.contract import Record, UnknownDevice
from kernel_selector.service.cli.profile_request import ProfileRequest
from selector import InvalidRequest
from selector.profiling.outliers import LEAST_LOSS, outlier_jobs
from tests.selector import replay

pytestmark = pytest.mark.usefixtures("quick_learner")

SLOWER = 3.0


def slower(record: Record) -> Record:
    timing = record.forward_backward or record.forward
    assert timing is not None
    scaled = replace(
        timing, p20_ms=timing.p20_ms * SLOWER, p50_ms=timing.p50_ms * SLOWER, p80_ms=timing.p80_ms * SLOWER
    )
    return replace(record, **{"forward_backward" if record.forward_backward else "forward": scaled})


@pytest.fixture
def disturbed(sqlite_database: Database) -> tuple[Database, Record]:
    """Measurements, of which the winner of one problem by far was taken while the machine stood still."""
    found = list(replay.sweep(replay.problems()))
    by_problem: dict[str, list[Record]] = {}
    for record in found:
        if record.total:
            by_problem.setdefault(record.problem.key, []).append(record)

    def lead(members: list[Record]) -> float:
        first, second = sorted(one.total.p20_ms for one in members if one.total)[:2]
        return second / first

    members = max((some for some in by_problem.values() if len(some) > 1), key=lead)
    winner = min(members, key=lambda one: one.total.p20_ms if one.total else 0.0)
    with sqlite_database.write() as connection:
        records.add(connection, records=[slower(one) if one is winner else one for one in found])
    return sqlite_database, winner


def test_no_model_of_memory_is_fitted(
    disturbed: tuple[Database, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, winner = disturbed
    monkeypatch.delattr("selector.training.fit.memory_model")
    assert outlier_jobs(["lstm"], database)[0].problem == winner.problem


def test_the_disturbed_one_is_first_with_all_its_candidates(disturbed: tuple[Database, Record]) -> None:
    database, winner = disturbed
    jobs = outlier_jobs(["lstm", "gru"], database)  # nothing is known of the second
    assert jobs[0].problem == winner.problem
    assert winner.implementation in jobs[0].implementations
    assert len(jobs[0].implementations) > 1
    with database.read() as connection:
        problems = {one.problem for one in records.find(connection, operator="lstm")}
    assert len(jobs) < len(problems) / 4
    assert LEAST_LOSS < SLOWER - 1


def test_a_second_measurement_settles_it(disturbed: tuple[Database, Record]) -> None:
    database, winner = disturbed
    with database.write() as connection:
        records.add(connection, records=[winner])
    assert winner.problem not in [job.problem for job in outlier_jobs(["lstm"], database)]


def test_it_is_asked_for_by_operator_and_device(disturbed: tuple[Database, Record]) -> None:
    database, winner = disturbed
    request = ProfileRequest(operators="lstm", given={}, outliers=True, database=database.location)
    assert request.jobs()[0].problem == winner.problem
    with pytest.raises(UnknownDevice):
        replace(request, device="h9000").jobs()
    with pytest.raises(InvalidRequest, match="Nothing measured of gru contradicts the rest"):
        replace(request, operators="gru").jobs()
