"""Bounds of predicted bytes by what was measured a step away, and the one upper end that limits go by."""

from __future__ import annotations

import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from selector.cost_model.estimate import Estimate, Tier
from selector.selection.evidence import Evidence
from selector.selection.joint_evidence import JointEvidence
from selector.selection.policy import Question, combine, decide
from tests.selector import replay

LSTM = registry.operator("lstm")
VERSIONS = {name: one.version for name, one in registry.implementations("lstm").items()}
NAME = LSTM.default
PROBLEM = LSTM.problem(hidden=64, batch=16)
SMALLER, LARGER = (LSTM.problem(hidden=64, batch=batch) for batch in (15, 17))
FAR, WORDED = LSTM.problem(hidden=64, batch=32), LSTM.problem(hidden=64, batch=15, bias=False)


def estimate(size: int, high: int) -> Estimate:
    return Estimate(1.0, 1.0, 1.0, size, size // 2, high, 0.0, 0.0)


def evidence(*found: tuple[Problem, int], **more: bool) -> Evidence:
    records = [replay.record(problem, NAME, time_ms=1.0, memory_bytes=size) for problem, size in found]
    return Evidence(records, VERSIONS, **more)


def bounded(known: Evidence, size: int = 14_000, high: int = 30_000, name: str = NAME) -> Estimate:
    tier = Tier("model", {name: estimate(size, high)})
    return known.bounded(tier, PROBLEM, replay.HERE).estimates[name]


def test_no_problem_needs_less_than_a_smaller_one() -> None:
    found = bounded(evidence((SMALLER, 40_000)))
    assert found.memory_bytes == found.low_bytes == 40_000
    assert found.high_bytes > 40_000


def test_no_problem_needs_more_than_a_larger_one() -> None:
    assert bounded(evidence((LARGER, 20_000))).high_bytes == 20_000


def test_the_upper_end_has_room_for_the_bytes_of_a_larger_one() -> None:
    found = bounded(evidence((LARGER, 40_000)))
    assert (found.memory_bytes, found.high_bytes) == (14_000, pytest.approx(40_000, rel=0.06))
    assert found.high_bytes <= 40_000


def test_a_larger_one_that_needs_less_leaves_the_estimate_as_it_is() -> None:
    found = bounded(evidence((LARGER, 10_000)))
    assert (found.memory_bytes, found.high_bytes) == (14_000, 14_000)


def test_bounds_on_both_sides_hold_together() -> None:
    found = bounded(evidence((SMALLER, 20_000), (LARGER, 22_000)))
    assert (found.low_bytes, found.memory_bytes, found.high_bytes) == (20_000, 20_000, 22_000)


@pytest.mark.parametrize("other", [FAR, WORDED])
def test_what_is_far_or_has_other_words_says_nothing(other: Problem) -> None:
    assert bounded(evidence((other, 40_000))) == estimate(14_000, 30_000)


def test_what_was_measured_of_another_implementation_says_nothing() -> None:
    assert bounded(evidence((SMALLER, 40_000)), name="hoisted") == estimate(14_000, 30_000)


def test_what_ships_bounds_beside_what_was_measured_here() -> None:
    both = JointEvidence(evidence((LARGER, 50_000)), evidence((SMALLER, 40_000), shipped=True))
    found = bounded(both)
    assert (found.memory_bytes, found.high_bytes <= 50_000) == (40_000, True)


@pytest.mark.parametrize("far", [False, True])
def test_a_limit_goes_by_the_upper_end_that_the_answer_shows(far: bool) -> None:
    one = estimate(14_000, 30_000)
    tier = Tier("model", {NAME: one.extrapolated(1.0) if far else one})

    def excluded(limit: int | None) -> tuple[int, str | None]:
        asked = Question(default=NAME, names=(NAME,), excluded={}, counted_bytes=lambda _: 0.0)
        asked = asked._replace(limit_bytes=limit, override=None if limit is None else NAME)
        decision = decide(asked, combine([tier], asked.names, asked.default))
        interval = decision.candidates[0].memory_interval_bytes
        assert interval is not None
        return interval[1], next((one for one in decision.caveats if "asked for by name" in one), None)

    shown, _ = excluded(None)
    assert excluded(shown) == (shown, None)
    assert excluded(shown - 1)[1] is not None
