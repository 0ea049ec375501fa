"""Measurements of one candidate taken together."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kernel_selector.kernels.contract import GateResult, Record, Status
from kernel_selector.kernels.measure.timing import timing
from selector.selection.records import pool, pooled
from tests.selector import replay


@pytest.fixture
def measured() -> Record:
    return replay.recorded()[0]


def visit(measured: Record, minute: int, *samples: float, **changes: Any) -> Record:
    at = measured.measured_at + timedelta(minutes=minute)
    return replace(measured, forward=timing(samples), measured_at=at, **changes)


def failed(measured: Record, minute: int) -> Record:
    nothing = dict.fromkeys(
        ("memory", "forward", "forward_backward", "graph_forward", "graph_forward_backward")
    )
    gate = GateResult.not_reached("killed")
    at = measured.measured_at + timedelta(minutes=minute)
    return replace(measured, status=Status.CRASHED, reason="killed", gate=gate, measured_at=at, **nothing)


def test_all_samples_count_in_the_newest_record(measured: Record) -> None:
    first, second = visit(measured, 0, 1.0, 5.0), visit(measured, 1, 2.0, 4.0, 3.0)
    (found,) = pooled([second, first])
    assert found == replace(second, forward=timing([1.0, 5.0, 2.0, 4.0, 3.0]))


def test_one_record_is_as_it_was(measured: Record) -> None:
    assert list(pooled([measured])) == [measured]


def test_the_newest_record_says_how_it_ends(measured: Record) -> None:
    good, bad = visit(measured, 0, 1.0), failed(measured, 1)
    assert list(pooled([bad, good])) == [bad]
    later = visit(measured, 2, 3.0)
    (found,) = pooled([good, bad, later])
    assert found.forward == timing([1.0, 3.0])


@pytest.mark.parametrize(
    "changes", [{"policy": "another"}, {"implementation_version": "newer"}, {"implementation": "another"}]
)
def test_what_does_not_compare_stays_apart(measured: Record, changes: dict[str, Any]) -> None:
    both = [visit(measured, 0, 1.0), visit(measured, 1, 2.0, **changes)]
    assert list(pooled(both)) == both


def test_percentiles_without_samples_are_not_mixed(measured: Record) -> None:
    bare = replace(timing([2.0, 3.0]), raw_ms=())
    whole, last = visit(measured, 0, 1.0), visit(measured, 1, 2.0)
    assert pool([whole, replace(last, forward=bare)]).forward == bare
    assert pool([replace(whole, forward=bare), last]).forward == timing([2.0])


def test_what_the_last_visit_did_not_time_is_of_an_earlier_one(measured: Record) -> None:
    replayed = replace(visit(measured, 0, 1.0), graph_forward=timing([0.5]))
    found = pool([replayed, visit(measured, 1, 2.0)])
    assert (found.graph_forward, found.forward) == (timing([0.5]), timing([1.0, 2.0]))
