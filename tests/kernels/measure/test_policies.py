"""Policies that judge long sequences at fewer steps, or leave out what is not asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import GateResult, Memory, Status
from kernel_selector.kernels.measure import COMPARE, ONCE, Session, identify
from kernel_selector.kernels.measure.policies import STEADY
from kernel_selector.kernels.measure.problem_run import Timed, not_far
from kernel_selector.kernels.measure.timing import timing

PROBLEM = registry.operator("lstm").problem(hidden=4, batch=2, seq=5)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """One process for all policies, since each job names its own."""
    with Session("cpu") as started:
        yield started


SHORTER = "; judged at seq=2, and at all 5 steps against torch's own"


@pytest.mark.parametrize(("gate_seq", "note"), [(2, SHORTER), (5, ""), (None, "")])
def test_a_longer_sequence_is_judged_at_fewer_steps_and_timed_whole(
    gate_seq: int | None, note: str, session: Session
) -> None:
    session.policy = replace(ONCE, gate_seq=gate_seq)
    (record,) = session.measure(PROBLEM, ["hoisted"])
    assert record.status is Status.OK
    assert record.gate.detail.endswith(note)
    assert ("judged" in record.gate.detail) == bool(note)
    assert record.problem == PROBLEM
    assert record.memory is not None
    kept = 6 * 5 * 2 * 4 * 4  # of all five steps: four gates, c and h, in float32
    assert record.memory.held_bytes >= kept


def test_causal_attention_is_judged_at_as_many_keys_as_queries(session: Session) -> None:
    operator = registry.operator("attention")
    problem = operator.problem(batch=1, heads=2, seq=6, head_dim=8, causal=True)
    assert registry.implementation("attention", "sdpa_flash").unsupported(problem, identify("cpu")) is None
    session.policy = replace(ONCE, gate_seq=3)
    (record,) = session.measure(problem, ["sdpa_flash"])
    assert record.status is Status.OK, record.reason
    assert record.gate.detail.endswith("; judged at seq=3, and at all 6 steps against torch's own")
    assert record.problem == problem


def test_once_takes_one_sample(session: Session) -> None:
    session.policy = ONCE
    (record,) = session.measure(PROBLEM, ["torch_lstm"])
    assert record.total is not None
    assert record.total.samples == 1


@pytest.mark.parametrize(("far", "kept"), [(None, "abc"), (6, "ab"), (1, "a")])
def test_graphs_are_captured_of_those_that_are_not_far_behind(far: float | None, kept: str) -> None:
    gate = GateResult(passed=True, worst_error_ratio=0.0)
    memory = Memory(peak_bytes=1, held_bytes=1, workspace_bytes=0)
    timed = [
        Timed(name, nn.Identity(), gate, memory, {"forward": timing([0.1]), "forward_backward": timing([ms])})
        for name, ms in {"a": 1.0, "b": 5.9, "c": 6.1}.items()
    ]
    assert "".join(one.name for one in not_far(far, timed)) == kept


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_backward_in_the_calling_thread() -> None:
    with Session("cuda:0", policy=STEADY) as session:
        records = list(session.measure(PROBLEM))
    assert {record.status for record in records} <= {Status.OK, Status.UNSUPPORTED}
    assert {"torch_lstm", "hoisted"} <= {one.implementation for one in records if one.total is not None}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("graph_forward", [True, False])
def test_the_forward_pass_alone_is_captured_only_when_asked(graph_forward: bool) -> None:
    with Session("cuda:0", policy=replace(COMPARE, graph_forward=graph_forward)) as session:
        (record,) = session.measure(PROBLEM, ["torch_lstm"])
    assert record.graph_forward_backward is not None
    assert (record.graph_forward is not None) == graph_forward
