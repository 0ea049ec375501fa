"""The measurements that ship: what later files add to the first ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kernel_selector.kernels.contract import GateResult, Record, Status
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
