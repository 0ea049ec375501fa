"""Peers at their best: there while a comparison runs, judged and timed as everybody, never dropped unsaid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.common import peers
from benchmarks.common.comparison import SMOKE
from benchmarks.common.figures import replays
from benchmarks.kernels import linear, recurrent, sublayers
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Status
from kernel_selector.kernels.gate.runs import draw
from kernel_selector.kernels.measure import Session

SMALL: dict[str, dict[str, object]] = {
    "linear": {"rows": 8, "in_features": 8, "out_features": 8},
    "gelu": {"elements": 16},
    "layer_norm": {"rows": 4, "hidden": 8},
    "rms_norm": {"rows": 4, "hidden": 8},
    "dropout_add_norm": {"rows": 4, "hidden": 8},
    "feed_forward": {"rows": 4, "hidden": 8, "inner": 16},
    "linear_cross_entropy": {"rows": 9, "hidden": 8, "vocabulary": 33},
    "attention": {"batch": 2, "heads": 2, "seq": 8, "head_dim": 8},
}
H100 = Device(name="NVIDIA H100 80GB HBM3", kind="cuda", compute_capability=(9, 0))


def test_peers_are_implementations_for_as_long_as_a_comparison_runs() -> None:
    before = set(registry.implementations("linear"))
    with peers.registered():
        assert {"peer_max_autotune", "peer_reduce_overhead"} == set(
            registry.implementations("linear")
        ) - before
    assert set(registry.implementations("linear")) == before


@pytest.mark.parametrize("comparison", [recurrent, linear, sublayers], ids=lambda one: one.__name__)
def test_every_comparison_asks_for_peers_and_counts_them_as_users(comparison: object) -> None:
    found = comparison.COMPARISON  # type: ignore[attr-defined]
    with peers.registered():
        timed = {name for cell in found.cells(found.kind.rows) for name in cell.implementations}
        usual = {name for cell in found.cells(found.kind.rows[:1]) for name in cell.implementations}
    named = set(filter(peers.is_peer, timed))
    assert "peer_reduce_overhead" in named
    assert all(found.kind.figures.of_users(name) for name in named)
    assert not any(map(peers.is_peer, usual))


def test_losses_without_logits_pass_the_gate_and_what_is_missing_says_so() -> None:
    problem = registry.operator("linear_cross_entropy").problem(rows=9, hidden=8, vocabulary=33)
    names = ["peer_chunked_loss", "peer_torchs_loss", "peer_liger_loss", "peer_max_autotune"]
    with peers.registered(), Session("cpu", policy=SMOKE, worker=peers.WORKER) as session:
        found = {record.implementation: record for record in session.measure(problem, names)}
    assert found["peer_chunked_loss"].status is Status.OK
    torchs = found["peer_torchs_loss"]
    if hasattr(torch.nn.functional, "linear_cross_entropy"):
        assert torchs.status is Status.OK
    else:
        assert "has no torch.nn.functional.linear_cross_entropy" in torchs.reason
    for name in names[2:]:
        assert found[name].status is Status.UNSUPPORTED
        assert found[name].reason


def test_liger_that_is_not_installed_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = registry.operator("rms_norm").problem(rows=4, hidden=8)
    (peer,) = (one for one in peers.PEERS if one.name == "peer_liger")
    monkeypatch.setattr(peers.util, "find_spec", lambda _: None)
    assert peer.refused(problem, H100) == "liger-kernel is not installed"
    monkeypatch.setattr(peers.util, "find_spec", lambda _: object())
    assert peer.refused(problem, H100) is None


def test_a_peer_that_replays_graphs_is_compared_with_graphs() -> None:
    with peers.registered():
        graphs = {name for name in registry.implementations("lstm") if replays(name)}
    assert graphs == {"fused_graph", "persistent_graph", "torch_lstm_graph", "peer_reduce_overhead"}


@pytest.mark.parametrize("operator", peers.COMPILED)
@pytest.mark.parametrize("name", ["peer_max_autotune", "peer_reduce_overhead"])
def test_a_compiled_peer_is_compiled_in_one_piece(
    operator: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced here, and run as traced: compilers make code for GPUs alone."""
    graphs: list[torch.fx.GraphModule] = []

    def traced(graph: torch.fx.GraphModule, _examples: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda one, **_: real(one, backend=traced))
    torch.compiler.reset()
    problem = registry.operator(operator).problem(**SMALL[operator])
    inputs = draw(problem, "cpu", 0)
    (peer,) = (one for one in peers.PEERS if one.name == name)
    own, module = registry.implementation(operator, registry.operator(operator).default), peer.build(problem)
    module(*inputs.args)
    assert len(graphs) == 1
    assert module.state_dict().keys() == own.build(problem).state_dict().keys()
