"""Drop-in modules under torch.compile ask for layers amid others, and outside of it for launched ones."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernel_selector.db import Database, records
from kernel_selector.kernels import measure, registry
from kernel_selector.kernels.contract import GateResult, Memory, Record, Status, Timing
from selector import nn as drop_in
from selector.nn.selection import REGIME
from selector.selection.selector import shared_selector
from tests.selector import replay

DEFAULT = "torch_rms_norm"
GOOD = GateResult(passed=True, worst_error_ratio=0.1)


@pytest.fixture(autouse=True)
def measured(
    request: pytest.FixtureRequest, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launched torch's own norm is the faster one, and compiled with neighbours the other."""
    request.getfixturevalue("stand_ins")
    monkeypatch.setenv("SELECTOR_DATABASE_URL", str(sqlite_database.url))
    times = {
        ("launched", DEFAULT): 1.0,
        ("launched", "stand_in"): 5.0,
        ("compiled", DEFAULT): 5.0,
        ("compiled", "stand_in"): 1.0,
    }
    device, software = measure.identify("cpu"), measure.current_environment("cpu")
    found = []
    for mode in ("training", "inference"):
        problem = registry.operator("rms_norm").problem(rows=4, hidden=8, mode=mode)
        for (regime, name), ms in times.items():
            timing = Timing(p20_ms=ms, p50_ms=ms, p80_ms=ms, samples=9)
            found.append(
                Record(
                    problem=problem,
                    implementation=name,
                    implementation_version=registry.implementation("rms_norm", name).version,
                    device=device,
                    environment=software,
                    policy="quick",
                    status=Status.OK,
                    gate=GOOD,
                    measured_at=replay.EPOCH,
                    forward=timing,
                    forward_backward=timing if mode == "training" else None,
                    memory=Memory(peak_bytes=1, held_bytes=0, workspace_bytes=0),
                    regime=regime,
                )
            )
    with sqlite_database.write() as connection:
        records.add(connection, found)


class Counting:
    """A backend that counts graphs, and runs them as they are."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        self.graphs += 1
        return graph.forward


def chosen(module: Any) -> list[tuple[str, str, str]]:
    return [(one.regime, one.problem["mode"], one.implementation) for one in module.choices]


def test_a_traced_call_asks_for_its_regime_and_one_outside_for_the_usual_one() -> None:
    torch._dynamo.reset()
    module, counting = drop_in.RMSNorm(8), Counting()
    model = nn.Sequential(nn.Linear(8, 8), module, nn.GELU())
    call, x = torch.compile(model, fullgraph=True, backend=counting), torch.randn(4, 8)
    expected = model(x)
    assert chosen(module) == [("launched", "training", DEFAULT)]
    for _ in range(2):
        torch.testing.assert_close(call(x), expected)
    both = [("launched", "training", DEFAULT), ("compiled", "training", "stand_in")]
    assert chosen(module) == both
    model(x)
    assert (chosen(module), counting.graphs) == (both, 1)
    model.eval()
    with torch.no_grad():
        call(x)
        model(x)
    assert chosen(module)[2:] == [("compiled", "inference", "stand_in"), ("launched", "inference", DEFAULT)]
    assert counting.graphs == 2


def test_what_was_named_or_frozen_is_so_in_every_regime() -> None:
    torch._dynamo.reset()
    module, x = drop_in.RMSNorm(8, implementation=DEFAULT), torch.randn(4, 8)
    torch.compile(module, fullgraph=True, backend="eager")(x)
    module(x)
    assert chosen(module) == [("launched", "training", DEFAULT)]
    other = drop_in.RMSNorm(8)
    other.freeze("stand_in")
    torch.compile(other, fullgraph=True, backend="eager")(x)
    assert other._selections[""].names == ["stand_in"]


def test_a_thread_that_traces_leaves_the_calls_of_others_alone() -> None:
    torch._dynamo.reset()
    module, x = drop_in.RMSNorm(8), torch.randn(4, 8)
    traced, looked = threading.Event(), threading.Event()
    choose, seen = type(module)._chosen_for_call, list[str]()

    def slow(self: Any, given: Tensor) -> Any:
        traced.set()
        assert looked.wait(60)
        seen.append(REGIME.get())
        return choose(self, given)

    call = torch.compile(module, fullgraph=True, backend="eager")
    tracing = threading.Thread(target=lambda: call(x))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(module), "_chosen_for_call", slow)
        tracing.start()
        assert traced.wait(60)
        seen.append(REGIME.get())
        looked.set()
        tracing.join()
    assert seen == ["launched", "compiled"]
    assert REGIME.get() == "launched"
    assert chosen(module) == [("compiled", "training", "stand_in")]


def test_without_measurements_in_a_graph_the_choice_says_so(sqlite_database: Database) -> None:
    torch._dynamo.reset()
    module = drop_in.RMSNorm(4096)
    torch.compile(module, fullgraph=True, backend="eager")(torch.randn(4, 4096))
    (choice,) = module.choices
    assert choice.regime == "compiled"
    assert any("--regime compiled" in caveat for caveat in choice.caveats)
    launched = shared_selector(sqlite_database).choose("rms_norm", rows=4, hidden=4096)
    assert (choice.implementation, choice.time_ms) == (launched.implementation, launched.time_ms)
