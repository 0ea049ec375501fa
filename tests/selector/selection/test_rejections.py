"""What the present gate rejects outweighs what an earlier one let pass, there and near there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import GateResult, Record, Status
from kernel_selector.kernels.contract.record import TIMINGS
from kernel_selector.kernels.gate import REVISION
from kernel_selector.kernels.versions import holds
from selector.selection.evidence import Evidence, says_wrong
from selector.selection.joint_evidence import JointEvidence
from selector.selection.shipped import rejections
from tests.selector import replay

VERSIONS = {name: one.version for name, one in registry.implementations("lstm").items()}
SMALL, NEAR, FAR = replay.problems(
    hidden=(64,), batch=(8, 9, 128), seq=(10,), layers=(1,), mode=("training",)
)
DEFAULT = "torch_lstm"


def verdict(name: str = "hoisted", revision: int = REVISION) -> Record:
    """That the gate found an implementation wrong at the small problem, without a time."""
    return replace(
        replay.record(SMALL, name),
        status=Status.INCORRECT,
        reason="signed mean",
        gate=GateResult(passed=False, worst_error_ratio=None, detail="signed mean"),
        memory=None,
        **dict.fromkeys(TIMINGS),
        gate_revision=revision,
    )


def failures(problem, measured, rejected):
    return Evidence(measured, VERSIONS, rejected).failures(problem, replay.HERE, DEFAULT)


def test_they_exclude_what_an_earlier_gate_let_pass_there_and_near_there() -> None:
    measured = replay.sweep([SMALL, NEAR, FAR])
    for problem, wanted in ((SMALL, {"hoisted"}), (NEAR, {"hoisted"}), (FAR, set())):
        excluded, doubtful = failures(problem, measured, [verdict()])
        assert set(excluded) == wanted
        assert all(says_wrong(reason) for reason in excluded.values())
        assert not doubtful


def test_what_as_new_a_gate_let_pass_there_counts_for_more() -> None:
    again = [replace(one, gate_revision=REVISION) for one in replay.sweep([NEAR])]
    assert failures(NEAR, again, [verdict()]) == ({}, {})
    assert set(failures(SMALL, again, [verdict()])[0]) == {"hoisted"}


def test_a_rejected_default_is_doubtful_and_earlier_code_is_not_concerned() -> None:
    measured = replay.sweep([SMALL, NEAR])
    excluded, doubtful = failures(NEAR, measured, [verdict(DEFAULT)])
    assert (excluded, list(doubtful)) == ({}, [DEFAULT])
    old = replace(verdict(), implementation_version="0" * 12)
    assert failures(SMALL, measured, [old]) == ({}, {})


@pytest.mark.parametrize("name", ["hoisted", DEFAULT])
@pytest.mark.parametrize(
    ("wrong", "right", "expected"), [(8, 0, True), (8, 2, True), (8, 3, False), (7, 0, False)]
)
@pytest.mark.parametrize("joint", [False, True])
def test_what_is_wrong_at_most_sizes_is_expected_to_be_wrong_at_others(
    name: str, wrong: int, right: int, expected: bool, joint: bool
) -> None:
    *measured, asked, other_words = [
        *replay.problems(
            hidden=(64,),
            batch=(8,),
            seq=[10 * 2**n for n in range(wrong + right + 1)],
            layers=(1,),
            mode=("training",),
        ),
        *replay.problems(hidden=(64,), batch=(8,), seq=(10,), layers=(1,), mode=("inference",)),
    ]
    rejected = [replace(verdict(name), problem=problem) for problem in measured[:wrong]]
    good = replay.sweep(measured[wrong:])
    evidence = Evidence(good, VERSIONS, rejected)
    if joint:
        evidence = JointEvidence(Evidence(good, VERSIONS, rejected[:3]), Evidence([], VERSIONS, rejected[3:]))
    excluded, doubtful = evidence.failures(asked, replay.HERE, DEFAULT)
    reason = f"gave wrong results on {wrong} of {wrong + right} problems of other sizes"
    reasons = {name: reason} if expected else {}
    assert (excluded, doubtful) == (({}, reasons) if name == DEFAULT else (reasons, {}))
    assert evidence.failures(other_words, replay.HERE, DEFAULT) == ({}, {})
    known = Evidence([*good, *replay.sweep([asked])], VERSIONS, rejected)
    assert known.failures(asked, replay.HERE, DEFAULT) == ({}, {})


def test_they_are_no_measurements() -> None:
    with_them, without = (Evidence(replay.sweep([FAR]), VERSIONS, one) for one in ([verdict()], []))
    assert with_them.problems == without.problems
    assert not list(with_them.measured(SMALL, replay.HERE, None))
    assert with_them.near(SMALL, replay.HERE, None) is None


def test_they_concern_devices_that_run_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    hopper = replace(replay.HERE, kind="cuda", compute_capability=(9, 0), host="")
    monkeypatch.setattr(rejections, "_verdicts", lambda: (replace(verdict(), device=hopper),))
    assert len(rejections.rejected("lstm", replace(hopper, name="another Hopper card"))) == 1
    assert not rejections.rejected("gru", hopper)
    assert not rejections.rejected("lstm", replace(hopper, compute_capability=(8, 0)))
    assert not rejections.rejected("lstm", replay.HERE)


def test_those_that_ship_are_of_present_code_and_of_this_gate() -> None:
    for one in rejections._verdicts():
        name, version = one.implementation, one.implementation_version
        now = registry.implementation(one.problem.operator, name).version
        assert holds(one.problem.operator, name, version, now), f"{name}: judge it again"
        assert (one.status, one.gate_revision) == (Status.INCORRECT, REVISION)
