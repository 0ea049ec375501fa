"""The measurements that ship: what later files add to the first ones, and sweeps to what ships."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.lines import keep
from benchmarks.common.result import RESULTS, ROOT
from kernel_selector.db import Database, StoredModel, models
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import GateResult, Record, Status
from kernel_selector.kernels.contract.record import TIMINGS
from kernel_selector.kernels.measure.timing import timing
from scripts.release import ship
from tests.selector import replay


@pytest.fixture
def measured() -> Record:
    """A measurement of the first files."""
    return replay.recorded()[0]


def test_later_records_of_another_version_are_added_beside_the_older_one(measured: Record) -> None:
    newer = replace(measured, implementation_version="newer")
    assert ship._added([measured], [newer]) == [newer]
    assert ship._added([measured, newer], [newer]) == []


def test_later_records_of_another_implementation_are_added(measured: Record) -> None:
    other = replace(measured, implementation="another")
    assert ship._added([measured], [measured, other]) == [other]


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "another"},
        {"device": replace(replay.HERE, name="another")},
        {"problem": replay.recorded()[-1].problem},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_later_records_of_what_the_first_files_lack_are_left_out(
    measured: Record, changes: dict[str, Any]
) -> None:
    newer = replace(measured, implementation_version="newer", **changes)
    assert ship._added([measured], [newer]) == []


def again(measured: Record, **changes: Any) -> Record:
    """Another visit, a minute later."""
    return replace(measured, measured_at=measured.measured_at + timedelta(minutes=1), **changes)


def test_good_records_are_of_the_first_file_that_has_the_problem(measured: Record) -> None:
    other, later = replace(measured, implementation="another"), again(measured)
    assert list(ship._first([[later], [measured, other]])) == [later]


def test_how_a_candidate_failed_is_kept(measured: Record) -> None:
    gate = GateResult.not_reached("it crashed")
    failed = {"status": Status.CRASHED, "reason": "it crashed", "gate": gate, "memory": None}
    failed |= dict.fromkeys(("forward", "forward_backward", "graph_forward", "graph_forward_backward"))
    crashed = replace(measured, implementation="another", **failed)
    once = replace(measured, **failed)  # and was good in the file before
    assert list(ship._first([[again(measured)], [once, crashed]])) == [again(measured), crashed]


def test_a_record_has_the_samples_of_all_visits(measured: Record) -> None:
    def visit(*samples: float, minutes: int, **changes: Any) -> Record:
        at = measured.measured_at + timedelta(minutes=minutes)
        return replace(measured, forward_backward=timing(samples), measured_at=at, **changes)

    last = visit(2.00004, 3.0, minutes=2)
    first = visit(1.0, minutes=0)
    other = visit(0.5, minutes=1, policy="another")
    (found,) = ship._whole([last], [last, first, other])
    assert found.forward_backward == timing([1.0, 2.0, 3.0])
    rest = {**_rounded(last, but="forward_backward"), "forward": found.forward}
    assert replace(found, forward_backward=last.forward_backward) == replace(last, **rest)


def test_of_a_step_the_samples_of_its_forward_pass_are_left_out(measured: Record) -> None:
    whole, part = timing([2.0, 3.0]), timing([1.0, 1.00004])
    step = ship._rounded(replace(measured, forward=part, forward_backward=whole, graph_forward=part))
    assert step.forward == replace(timing([1.0, 1.0]), raw_ms=())
    assert step.forward_backward == whole
    assert step.graph_forward == timing([1.0, 1.0])  # no step was captured


def _rounded(record: Record, but: str) -> dict[str, Any]:
    rounded = ship._rounded(record)
    names = ("forward", "forward_backward", "graph_forward", "graph_forward_backward")
    return {name: getattr(rounded, name) for name in names if name != but}


def test_a_host_of_another_number_of_cores_counts_alike(measured: Record) -> None:
    on_cpu = replace(measured, device=replace(measured.device, kind="cpu"))
    more = replace(measured.environment, threads=measured.environment.threads + 8)
    assert ship._candidate(measured) == ship._candidate(replace(measured, environment=more))
    assert ship._candidate(on_cpu) != ship._candidate(replace(on_cpu, environment=more))
    newer = replace(more, driver="another")
    assert ship._candidate(measured) != ship._candidate(replace(measured, environment=newer))


def test_one_clock_under_two_policies_counts_alike(measured: Record) -> None:
    policies = ("steady", "steady_survey", "compare")
    steady, survey, other = (ship._candidate(replace(measured, policy=policy)) for policy in policies)
    assert steady == survey != other


def test_hosts_of_one_processor_are_one_by_their_fastest_probe(measured: Record) -> None:
    def on(host: str, launch_us: float, kind: str = "cuda") -> Record:
        device = replace(measured.device, kind=kind, host=host, launch_us=launch_us)
        return replace(measured, device=device)

    found = [on("Xeon x16", 7.0), on("Xeon x64", 6.0), on("EPYC x16", 5.0), on("EPYC x2", 4.0, kind="cpu")]
    devices = [record.device for record in ship._of_one_host(found)]
    assert [(device.host, device.launch_us) for device in devices] == [
        ("Xeon", 6.0),
        ("Xeon", 6.0),
        ("EPYC", 5.0),
        ("EPYC x2", 4.0),
    ]
    assert devices[0].fingerprint == devices[1].fingerprint


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database made of a sweep alone, without cost models."""
    monkeypatch.setattr(ship, "_trained", lambda operator, _: operator)
    output = tmp_path / "shipped.db.xz"
    ship.main(["--from-nothing", str(sweep(tmp_path, "first", some())), "--output", str(output)])
    return output


def some(factor: float = 1) -> list[Record]:
    """Good measurements of thirty candidates, each with all of its samples."""
    good = {ship._candidate(one): one for one in replay.recorded() if one.status is Status.OK}
    return [_sampled(record, factor) for record in list(good.values())[:30]]


def _sampled(record: Record, factor: float) -> Record:
    times = {name: getattr(record, name) for name in TIMINGS}
    samples = {name: timing([factor * one.p20_ms, factor * one.p80_ms]) for name, one in times.items() if one}
    return replace(record, **samples)


def sweep(folder: Path, name: str, found: list[Record]) -> Path:
    file = folder / f"{name}.jsonl.xz"
    keep("".join(record.to_json() + "\n" for record in found), file)
    return file


def extended(shipped: Path, *arguments: str | Path) -> list[Record]:
    output = shipped.with_name("extended.db.xz")
    ship.main([*map(str, arguments), "--base", str(shipped), "--output", str(output)])
    return ship.packed(output)


def test_extended_by_nothing_a_database_has_the_same_records(shipped: Path) -> None:
    assert len(ship.packed(shipped)) == len(some())
    assert extended(shipped) == ship.packed(shipped)


def test_a_sweep_of_other_problems_comes_behind_what_ships(
    shipped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = [replace(record, device=replace(record.device, name="another")) for record in some()[:5]]
    before = ship.packed(shipped)
    after = extended(shipped, sweep(tmp_path, "new", [*new, again(some(2)[9])]))
    assert "new.jsonl.xz: 6 records, 5 by themselves, 1 as samples, 0 left out" in capsys.readouterr().out
    assert [one.device.name for one in after[len(before) :]] == ["another"] * 5
    assert [index for index, one in enumerate(before) if one != after[index]] == [9]


def test_layers_compiled_with_neighbours_ship_beside_launched_ones(shipped: Path, tmp_path: Path) -> None:
    compiled = [replace(record, regime="compiled") for record in some(2)[:3]]
    before, after = ship.packed(shipped), extended(shipped, sweep(tmp_path, "compiled", compiled))
    assert after[: len(before)] == before
    assert [one.regime for one in after[len(before) :]] == ["compiled"] * 3
    again = shipped.with_name("again.db.xz")
    ship.main(["--base", str(shipped.with_name("extended.db.xz")), "--output", str(again)])
    assert ship.packed(again) == after


def test_another_visit_adds_its_samples_to_what_ships(shipped: Path, tmp_path: Path) -> None:
    visits = [again(record) for record in some(2)[:3]]
    before, after = ship.packed(shipped), extended(shipped, "--again", sweep(tmp_path, "again", visits))
    assert [one.measured_at for one in after] == [one.measured_at for one in before]
    for visit, one, both in zip(visits, before, after, strict=False):
        assert both.total is not None
        assert both.total == timing([*ship._rounded(visit).total.raw_ms, *one.total.raw_ms])  # type: ignore[union-attr]


def test_a_sweep_that_ships_is_not_added_again(shipped: Path, tmp_path: Path) -> None:
    ships, pooled = some(), [again(record) for record in some()]
    for found in (ships, pooled):
        file = sweep(tmp_path, "known", found)
        with pytest.raises(
            SystemExit, match=r"known\.jsonl\.xz: its samples are in .*shipped\.db\.xz already"
        ):
            extended(shipped, "--again", file)


def test_a_cost_model_stays_where_nothing_that_it_learned_from_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlearned: dict[str, Any] = {"version": "1", "schema": 1, "manifest": {}, "evaluation": {}, "arrays": b""}
    unlearned["created_at"] = datetime(2026, 11, 27, tzinfo=UTC)

    learned: list[str] = []

    def train(operator: str, path: Path) -> str:
        learned.append(operator)
        with Database.open(path) as database, database.write() as connection:
            models.add(connection, model=StoredModel(operator=operator, **unlearned))
        return f"{operator} learned"

    monkeypatch.setattr(ship, "_trained", train)
    output = tmp_path / "shipped.db.xz"
    ship.main(["--from-nothing", str(sweep(tmp_path, "first", some())), "--output", str(output)])
    assert learned == list(registry.operators())  # from nothing no cost model of what ships is taken over
    new = [replace(one, device=replace(one.device, name="another")) for one in some()[:1]]
    assert {one.problem.operator for one in new} == {"lstm"}
    for more, expected in (
        ([], set()),
        ([str(sweep(tmp_path, "new", new))], {"lstm", "gru", "rnn"}),  # the other two learn from it
        ([str(sweep(tmp_path, "compiled", [replace(one, regime="compiled") for one in new]))], set()),
        (["--train-all"], set(registry.operators())),
    ):
        learned.clear()
        extended(output, *more)
        assert set(learned) == expected


def test_from_nothing_needs_files() -> None:
    with pytest.raises(SystemExit):
        ship.main(["--from-nothing"])


@pytest.mark.parametrize("result", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_result_says_where_its_records_are(result: Path) -> None:
    named = json.loads(result.read_text()).get("records", ())
    names = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    files = [name for name in names if isinstance(name, str)]
    assert [name for name in files if not (RESULTS / name).exists() and not (ROOT / name).exists()] == []
