"""A calibration of a GPU, on a replayed one: what it measures, and what is carried over after it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kernel_selector.db import Database, records
from kernel_selector.kernels.contract import Device, Problem, Record, Status
from kernel_selector.kernels.measure import QUICK
from kernel_selector.service.cli import main
from selector import InvalidRequest, NoMeasurements, Selector, calibrate
from selector.profiling import calibration
from selector.profiling import profile as profiling
from selector.profiling import quickstart as onboarding
from selector.profiling.calibration import CalibrationFinished, jobs_of
from selector.profiling.events import ProblemStored
from tests.selector import replay
from tests.selector.replay_session import ReplaySession

MEASURED = [one for one in replay.recorded(device_kind="cuda") if one.status is Status.OK]
ORIGIN = MEASURED[0].device
HERE = replace(
    ORIGIN,
    name="Slower GPU",
    host="This host",
    copy_bytes_per_s=(ORIGIN.copy_bytes_per_s or 0) / 2,
    matmul_flops_per_s={dtype: rate / 2 for dtype, rate in ORIGIN.matmul_flops_per_s.items()},
)
SLOWER = 3.0  # times as long as on the other, where rates say twice as long


class ReplayedGpu:
    """Takes SLOWER times what was recorded of the other GPU, and longer each time where it throttles."""

    def __init__(self, device: Device = HERE, throttles: float = 0.0) -> None:
        self.device, self.environment, self.policy = device, MEASURED[0].environment, QUICK
        self.throttles, self.measured = throttles, list[str]()

    def measure(self, problem: Problem, implementations: Sequence[str]) -> Iterator[Record]:
        self.measured.append(problem.key)
        for one in MEASURED:
            if one.problem == problem and one.implementation in implementations:
                slower = SLOWER * (1 + self.throttles * len(self.measured))
                yield replace(_timed(one, slower), device=self.device, measured_at=datetime.now(UTC))


def _timed(one: Record, slower: float) -> Record:
    found: dict[str, Any] = {}
    for name in ("forward", "forward_backward"):
        timing = getattr(one, name)
        if timing is not None:
            times = {each: slower * getattr(timing, each) for each in ("p20_ms", "p50_ms", "p80_ms")}
            found[name] = replace(timing, **times, raw_ms=tuple(slower * raw for raw in timing.raw_ms))
    return replace(one, **found, policy="quick")


@pytest.fixture
def database(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    """Of the recorded measurements of the other GPU, and nothing that ships."""
    monkeypatch.setenv("SELECTOR_SHIPPED", "off")
    with sqlite_database.write() as connection:
        records.add(connection, MEASURED)
    return sqlite_database


def run(database: Database, session: ReplayedGpu, monkeypatch: pytest.MonkeyPatch, **more: Any) -> list[Any]:
    monkeypatch.setattr(profiling, "session", lambda *_: nullcontext(session))
    return list(calibrate(database=database, **more))


def finished(events: list[Any]) -> CalibrationFinished:
    assert isinstance(events[-1], CalibrationFinished)
    return events[-1]


def test_what_is_carried_over_is_corrected_by_what_was_seen(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Selector(database, frozen=True)
    session = ReplayedGpu()
    found = finished(run(database, session, monkeypatch, problems=8))
    assert found.problems == len(set(session.measured)) == 8
    assert found.origin == ORIGIN.name
    assert found.throttled is None
    lstm = found.operators["lstm"]
    assert lstm.factor > 1.2
    assert lstm.error_after is not None
    assert lstm.error_after < lstm.error_before / 2
    assert json.loads(json.dumps(found.to_dict()))["operators"]["lstm"]["measurements"] == lstm.measurements
    after = Selector(database, frozen=True)
    other = next(
        one
        for one in MEASURED
        if one.problem.key not in session.measured and one.implementation == "torch_lstm"
    )
    (mine, theirs) = (
        next(
            one
            for one in each.choose(device=HERE, **other.problem.as_dict).candidates
            if one.name == "torch_lstm" and one.source == "transfer"
        )
        for each in (after, before)
    )
    truth = SLOWER * other.total.undisturbed_ms
    assert abs(mine.time_ms / truth - 1) < abs(theirs.time_ms / truth - 1)
    low, high = mine.time_interval_ms
    assert low <= truth <= high
    caveats = after.choose(device=HERE, **other.problem.as_dict).caveats
    assert any("corrected by" in caveat for caveat in caveats)


def test_a_gpu_that_throttles_is_marked(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    found = finished(run(database, ReplayedGpu(throttles=0.2), monkeypatch, problems=4))
    assert found.throttled == pytest.approx((1 + 0.2 * 5) / 1.2, rel=0.01)


def test_it_ends_with_its_budget_and_goes_on_where_it_ended(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=5.0)
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    session = ReplayedGpu()
    found = finished(run(database, session, monkeypatch, budget_s=100.0))
    assert 1 <= found.problems < 20
    monkeypatch.undo()
    monkeypatch.setenv("SELECTOR_SHIPPED", "off")
    first = set(session.measured)
    again = ReplayedGpu()
    events = run(database, again, monkeypatch, problems=len(first) + 2)
    stored = {event.problem.key for event in events if isinstance(event, ProblemStored)}
    assert len(stored - first) >= 1
    assert finished(events).problems == len(stored)


def test_the_problems_are_of_all_kinds_and_fit(database: Database) -> None:
    selector = Selector(database, frozen=True)
    jobs = jobs_of(selector, HERE, 10)
    assert len({job.problem for job in jobs}) == 10
    for job in jobs:
        assert job.implementations[0] == "torch_lstm"
        assert 3 <= len(job.implementations) <= calibration.CANDIDATES
    assert jobs_of(selector, replace(HERE, memory_bytes=1), 10) == []


def test_a_processor_is_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "session", lambda *_: nullcontext(ReplaySession()))
    with pytest.raises(InvalidRequest, match="is a processor"):
        list(calibrate(database=database))


def test_without_another_gpu_there_is_nothing_to_carry_over(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELECTOR_SHIPPED", "off")
    with pytest.raises(NoMeasurements, match="nothing to carry over"):
        run(sqlite_database, ReplayedGpu(), monkeypatch)


def test_the_command(
    database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profiling, "session", lambda *_: nullcontext(ReplayedGpu(throttles=0.2)))
    assert main(["calibrate", "--quick", "--database", database.location]) == 0
    text = capsys.readouterr().out
    assert "The GPU throttles" in text
    assert "lstm" in text
    assert main(["calibrate", "--quick", "--database", database.location, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["origin"] == ORIGIN.name


def test_a_quickstart_begins_with_it_on_a_gpu_that_nobody_measured(database: Database) -> None:
    events = list(onboarding._calibrated(database, ReplayedGpu(), 100.0))
    assert finished(events).problems == onboarding.QUICK_PROBLEMS


def test_a_quickstart_on_a_gpu_goes_on_where_there_is_nothing_to_carry_over(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELECTOR_SHIPPED", "off")
    assert list(onboarding._calibrated(sqlite_database, ReplayedGpu(), 100.0)) == []
