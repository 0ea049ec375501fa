"""What cannot be compiled is reported, what is a user's own is refused, and arguments of no use are."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import selector
from kernel_selector.kernels.runtime import torch_compile
from selector import InvalidRequest
from selector.models.rewriting import arrangement_search, trials
from selector.models.rewriting.paired_timing import Outcome
from tests.selector.models.rewriting.compiled import Model, compile_by, name_of, steps_take

pytestmark = pytest.mark.usefixtures("stand_ins", "relu_promised", "traced_alone")


@pytest.fixture
def x() -> Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def test_a_failed_compilation_is_reported_and_the_others_go_on(
    x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(graph: Any, _inputs: Any) -> Any:
        if not any("stand_in" in str(one) for one in graph.modules()) and failing_first.pop():
            raise RuntimeError("no such instruction\nmore of it")
        return graph

    failing_first = [False, False, False, True]
    compile_by(monkeypatch, failing)
    steps_take(monkeypatch, {"compiled_ours": 5.0})
    report = selector.optimize(Model(), x, arrangements=("compiled", "compiled_ours"))
    why = {one.name: one.why for one in report.arrangements}
    assert why["compiled"] is not None
    assert why["compiled"].startswith("compiling failed: ")
    assert "no such instruction" in why["compiled"]
    assert "more of it" not in why["compiled"]
    assert report.kept == "compiled_ours"


def test_memory_that_runs_out_while_it_is_compiled_or_timed_is_reported(
    x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compared(current: Callable[[int], Any], tried: Callable[[int], Any], *_: Any, **__: Any) -> Outcome:
        current(1), tried(1)
        raise torch.OutOfMemoryError("tried to allocate")

    def short(_graph: Any, _inputs: Any) -> Any:
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    steps_take(monkeypatch, {})
    monkeypatch.setattr(trials, "time_pairs", compared)
    report = selector.optimize(Model(), x, arrangements=("compiled", "reduce_overhead"))
    rows = {one.name: one for one in report.arrangements}
    assert rows["compiled"].why == f"a step of it raised {trials.NO_ROOM}"
    assert rows["reduce_overhead"].times is not None  # of steps one after the other
    compile_by(monkeypatch, short)
    model = Model()
    report = selector.optimize(model, x, arrangements=("compiled",))
    assert report.kept == name_of(model) == "as given"
    assert "tried to allocate 2 GiB" in str(report.arrangements[-1].why)


def test_without_a_compiler_the_report_says_so_once(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    from torch._inductor import cpp_builder, exc

    def missing() -> str:
        raise exc.InvalidCxxCompiler

    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    model = Model()
    report = selector.optimize(model, x)
    text = " ".join(str(report).split())
    assert text.count("no C++ compiler, which torch.compile needs on a CPU: install g++") == 1
    assert {one.name for one in report.arrangements if one.why} >= {"compiled", "compiled_ours"}
    assert name_of(model) == "as given"


def test_without_triton_nothing_is_compiled_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    reason = torch_compile.unavailable("cuda")
    assert reason == "Triton, which torch.compile needs on a GPU, is missing or too old"


def test_a_users_own_compilation_is_refused_and_kept(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    model.compile(backend="eager")
    call = model._compiled_call_impl
    with pytest.raises(InvalidRequest, match=r"was compiled by model\.compile\(\): expected one that is not"):
        selector.optimize(model, x)
    assert selector.restore(model) == 0
    assert model._compiled_call_impl is call
    model = Model()
    steps_take(monkeypatch, {"ours": 9.0})
    assert selector.optimize(model, x, arrangements=("ours",)).kept == "ours"
    model.compile(backend="eager")
    call = model._compiled_call_impl
    assert selector.restore(model) == 1  # the layer
    assert model._compiled_call_impl is call
    with pytest.raises(InvalidRequest, match="model is compiled"):
        selector.replay(model, x)


class Around(nn.Module):
    """A model in another one, as PEFT's and Lightning's have it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


@pytest.mark.parametrize("wrapper", [nn.DataParallel, Around])
def test_a_wrapper_has_its_model_optimized_and_restored(
    x: Tensor, wrapper: Callable[[nn.Module], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_take(monkeypatch, {"compiled_ours": 4.0, "compiled": 5.0})
    model = Model()
    given = model if wrapper is Around else wrapper(model)
    selector.optimize(given, x, arrangements=("compiled", "compiled_ours"))
    assert name_of(model) == "compiled_ours"
    whole = wrapper(model)
    assert list(whole.state_dict()) == [f"module.{name}" for name in Model().state_dict()]
    assert selector.restore(whole) == 2
    assert name_of(model) == "as given"


@pytest.mark.parametrize(
    "model",
    [nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.TransformerEncoderLayer(4, 2, 8, 0.0), Model()],
    ids=lambda one: type(one).__name__,
)
def test_models_of_torchs_own_classes_are_compiled_too(
    model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[weakref.ref[Any]] = []

    def counting(graph: Any, _inputs: Any) -> Any:
        graphs.append(weakref.ref(graph))
        return graph

    compile_by(monkeypatch, counting)
    monkeypatch.setattr(arrangement_search, "MOST_SECONDS", 0.2)
    expected = copy.deepcopy(model)(x)
    report = selector.optimize(model, x, arrangements=("compiled",))
    assert graphs
    torch.testing.assert_close(model(x), expected)
    if report.kept == "compiled":
        selector.restore(model)
    gc.collect()
    assert [one for one in graphs if one() is not None] == []


class Ragged(Model):
    """A shape that depends on what x holds."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[x[:, 0].nonzero()[:, 0]])


class Tagged(Tensor):
    """A subclass that computes as a tensor does."""


def nested() -> Model:
    model = Model()
    model.first.compile(backend="eager")
    return model


@pytest.mark.parametrize("case", ["data-dependent shapes", "a compiled part", "a subclass of tensors"])
def test_what_a_compiler_may_stumble_over_is_right_or_reported(
    x: Tensor, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_take(monkeypatch, {"compiled": 5.0})
    model = {"a compiled part": nested, "data-dependent shapes": Ragged}.get(case, Model)()
    if case == "a subclass of tensors":
        x = x.as_subclass(Tagged)
    expected = copy.deepcopy(model)(x)
    part = model.first._compiled_call_impl
    report = selector.optimize(model, x, arrangements=("compiled",))
    (row,) = (one for one in report.arrangements if one.name == "compiled")
    assert (report.kept == "compiled") is (row.why is None)
    torch.testing.assert_close(model(x), expected)
    selector.restore(model)
    assert model.first._compiled_call_impl is part


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"arrangements": ()}, r"arrangements=\(\): expected a tuple of names among ours, replayed"),
        ({"arrangements": "ours"}, "arrangements='ours': expected a tuple of names"),
        ({"arrangements": ("ours", "fast")}, "arrangements: 'fast' is unknown, expected .*compiled_ours"),
        ({"budget": 0}, "budget=0: expected a time above 0"),
        ({"budget": -1.5}, "budget=-1.5: expected"),
        ({"budget": "soon"}, "budget='soon': expected .* '10m'"),
        ({"budget": None}, "budget=None: expected"),
        ({"budget": True}, "budget=True: expected"),
        ({"progress": 3}, "progress=3: expected a function"),
    ],
)
def test_arguments_of_no_use_are_refused(x: Tensor, wish: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        selector.optimize(Model(), x, **wish)


@pytest.mark.filterwarnings("ignore")  # of torch's compiler about this machine
def test_inductor_compiles_a_model_here(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(arrangement_search, "MOST_SECONDS", 0.2)
    model = nn.Sequential(*(one for _ in range(3) for one in (nn.Linear(4, 4), nn.Tanh(), nn.Sigmoid())))
    plain = copy.deepcopy(model)
    reason = torch_compile.unavailable("cpu")
    if reason is not None:
        pytest.skip(reason)
    report = selector.optimize(model, x, arrangements=("compiled",), budget="5m")
    (row,) = (one for one in report.arrangements if one.name == "compiled")
    assert row.compile_s is not None, row.why
    assert row.step_ms is not None
    assert row.peak_bytes is not None
    assert row.peak_bytes > 2 * x.nbytes
    assert (model._compiled_call_impl is not None) is (report.kept == "compiled")
    torch.testing.assert_close(model(x), plain(x))
