"""Layers compiled with neighbours: what is computed, what is refused, and a record of one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor import config, cpp_builder, exc

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import MeasurementFailed, Record, Status
from kernel_selector.kernels.measure import ONCE, QUICK, Session
from kernel_selector.kernels.measure.neighbours import Amid, _amid, amid_neighbours, refusal, require_compiler
from kernel_selector.kernels.measure.policies import InvalidRegime
from kernel_selector.kernels.measure.sweeps import Finished
from kernel_selector.kernels.measure.workload import Workload, tensors
from kernel_selector.kernels.recurrent.cuda_graphs.modules import Graphed

LINEAR = registry.operator("linear").problem(in_features=6, out_features=6, rows=4)
COMPILED = ONCE.in_regime("compiled")


@pytest.fixture
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs that are traced and differentiated as always, and run by torch."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


def layer_of(problem=LINEAR) -> nn.Module:
    operator = registry.operator(problem.operator)
    layer = registry.implementation(operator.name, operator.default).build(problem)
    layer.load_state_dict(operator.make_inputs(problem, "cpu", 0).state_dict)
    return layer


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed, by which Inductor compiles")
def test_torchs_own_layer_is_measured_compiled_with_neighbours() -> None:
    with Session("cpu", policy=COMPILED) as session:
        (record,) = session.measure(LINEAR, ["torch_linear"])
    assert record.status is Status.OK, record.reason
    assert record.regime == "compiled"
    assert record.gate.passed
    assert record.forward_backward is not None
    assert record.graph_forward is record.graph_forward_backward is None
    assert Record.from_json(record.to_json()) == record


def test_the_neighbours_are_a_bias_and_an_activation_before_and_a_residual_behind() -> None:
    layer, x = layer_of(), torch.randn(4, 6)
    bias, slope, share = torch.randn(6), torch.tensor([0.3]), torch.tensor(0.7)
    before = torch.where(x + bias > 0, x + bias, slope * (x + bias))
    torch.testing.assert_close(_amid(layer, (bias, slope, share), x), layer(before) + share * x)
    narrow = nn.Linear(6, 5)  # whose outputs have another shape
    torch.testing.assert_close(_amid(narrow, (bias, slope, share), x), narrow(before))


@pytest.mark.usefixtures("without_inductor")
@pytest.mark.parametrize("operator", ["linear", "lstm"])
def test_what_comes_out_is_exactly_the_layers(operator: str) -> None:
    problem = LINEAR if operator == "linear" else registry.operator("lstm").problem(hidden=4, batch=2, seq=3)
    layer, inputs = layer_of(problem), registry.operator(operator).make_inputs(problem, "cpu", 1)
    amid = Amid(layer)
    assert list(amid.state_dict()) == list(layer.state_dict())
    assert list(amid.parameters()) == list(layer.parameters())
    workload = Workload(problem, inputs)
    args = workload.sets[0]
    leaves = [*tensors(args), *layer.parameters()]
    found = []
    for module in (layer, amid):
        outputs = module(*args)
        y = outputs[0] if isinstance(outputs, tuple) else outputs
        found.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("without_inductor")
def test_the_biass_gradient_is_computed_too_and_none_in_inference() -> None:
    amid, x = Amid(layer_of()), torch.randn(4, 6)
    y = amid(x)
    ((bias, *_),) = amid._around.values()
    (gradient,) = torch.autograd.grad(y.sum(), [bias])
    torch.testing.assert_close(gradient, amid.layer.weight.sum(0) * 4)
    with torch.inference_mode():
        assert not amid(x).requires_grad
    assert [one.requires_grad for one, *_ in amid._around.values()] == [True, False]


@pytest.mark.usefixtures("without_inductor")
def test_each_kind_of_call_may_have_a_graph_of_its_own() -> None:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=2):
        amid = amid_neighbours(layer_of())
        for rows in range(1, 7):
            amid(torch.randn(rows, 6))


@pytest.mark.usefixtures("without_inductor")
def test_a_graph_is_made_while_memory_that_nobody_wrote_is_filled() -> None:
    """An operator's memory in a compiler's hands has no values to fill: it could not be traced."""
    from kernel_selector.kernels.gate.poison import poisoned_memory

    problem = registry.operator("linear_cross_entropy").problem(rows=6, hidden=16, vocabulary=11)
    inputs = registry.operator(problem.operator).make_inputs(problem, "cpu", 0)
    amid = Amid(registry.implementation(problem.operator, "chunked").build(problem))
    amid.load_state_dict(inputs.state_dict)
    x, labels = inputs.args
    x = x.clone().requires_grad_()
    with poisoned_memory():
        (gradient,) = torch.autograd.grad(amid(x, labels), [x])
    assert gradient.isfinite().all()


def test_refused_are_graphs_within_graphs_and_packed_sequences() -> None:
    for operator in ("lstm", "gru", "rnn"):
        problem = registry.operator(operator).problem(hidden=4, batch=2, seq=3)
        for name, one in registry.implementations(operator).items():
            assert one.replays == isinstance(one.build(problem), Graphed), name
            assert (refusal(one, problem) is not None) == one.replays
        packed = registry.operator(operator).problem(hidden=4, batch=2, seq=3, packed=True)
        default = registry.implementation(operator, registry.operator(operator).default)
        assert "packed" in (refusal(default, packed) or "")
    others = [name for name in registry.operators() if name not in ("lstm", "gru", "rnn")]
    assert not [one for name in others for one in registry.implementations(name).values() if one.replays]


def test_refused_candidates_get_records_that_say_why() -> None:
    problem = registry.operator("lstm").problem(hidden=4, batch=2, seq=3, packed=True)
    with Session("cpu", policy=COMPILED) as session:
        (record,) = session.measure(problem, ["torch_lstm"])
    assert (record.status, record.regime) == (Status.UNSUPPORTED, "compiled")
    assert "packed" in record.reason


def test_a_policy_is_for_a_regime() -> None:
    assert QUICK.in_regime("launched") is QUICK
    other = QUICK.in_regime("compiled")
    assert (other.name, other.regime, other.graphs) == ("quick", "compiled", False)
    assert other.timeout_s > QUICK.timeout_s
    for name in ("graph", "eager"):
        with pytest.raises(InvalidRegime, match="expected launched or compiled"):
            QUICK.in_regime(name)


def test_a_machine_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with Session("cpu") as session:
        device = session.device

    def missing() -> str:
        raise exc.InvalidCxxCompiler

    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    with pytest.raises(MeasurementFailed, match=r"no C\+\+ compiler, .* install g\+\+, or set CXX"):
        Session("cpu", policy=COMPILED)
    old = replace(device, kind="cuda", compute_capability=(6, 1))
    with pytest.raises(MeasurementFailed, match=r"capability 7\.0"):
        require_compiler(old)


@pytest.mark.parametrize("name", ["no_such_compiler", "no_program", "false"])
def test_what_is_no_compiler_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that may not be executed was a PermissionError of torch's."""
    (tmp_path / "no_program").touch(mode=0o644)
    (tmp_path / "false").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "false").chmod(0o755)
    given = str(tmp_path / name)
    monkeypatch.setenv("CXX", given)
    words = f"CXX={given} is no C++ compiler, which torch.compile needs on a CPU: install g++ and unset CXX"
    read = config.patch({"cpp.cxx": (None, given)})  # from CXX, when torch is imported
    with read, pytest.raises(MeasurementFailed) as caught:
        Session("cpu", policy=COMPILED)
    assert words in str(caught.value)


def test_a_file_of_records_is_finished_in_the_regime_that_it_was_measured_in(tmp_path: Path) -> None:
    problem = registry.operator("lstm").problem(hidden=4, batch=2, seq=3, packed=True)
    file = tmp_path / "records.jsonl"
    with Session("cpu", policy=COMPILED) as session:
        (record,) = session.measure(problem, ["torch_lstm"])
        file.write_text(record.to_json() + "\n")
        versions = {"torch_lstm": record.implementation_version}
        assert Finished.read(file).missing(problem, versions, session) == []
        session.policy = ONCE
        assert Finished.read(file).missing(problem, versions, session) == ["torch_lstm"]
