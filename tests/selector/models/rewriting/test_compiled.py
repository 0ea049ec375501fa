"""Models that `optimize` compiles: the fastest arrangement stays, whatever loses leaves nothing behind."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import selector
from selector import InvalidRequest, Selector
from selector import nn as drop_in
from selector.models.rewriting import arrangement_search, compilation, timing, trials
from selector.models.rewriting.budget import Budget
from selector.models.rewriting.paired_timing import Outcome, outcome

pytestmark = pytest.mark.usefixtures("stand_ins", "promised", "traced_alone")

ALL = ("ours", "compiled", "compiled_ours", "reduce_overhead")


class Model(nn.Module):
    """x [B, 4] to y [B, 2], with a buffer that changes, and dropout where it has a share."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.relu, self.last = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)
        self.norm, self.dropout = nn.BatchNorm1d(4), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.dropout(self.norm(self.relu(self.first(x)))))
        return y


@pytest.fixture
def x() -> Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of other machines say that the stand-in for ReLU is faster."""
    choose = Selector.choose

    def promising(self: Selector, operator: str, **more: Any) -> Any:
        found = choose(self, operator, **{**more, "override": "stand_in" if operator == "relu" else None})
        return replace(found, source="model") if found.source == "override" else found

    monkeypatch.setattr(Selector, "choose", promising)


def compile_by(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    def turn_on(model: nn.Module, mode: str | None) -> None:
        compilation.compile_in_place(model, backend=backend)
        model._compiled_call_impl.mode = mode  # type: ignore[union-attr]

    monkeypatch.setattr(compilation, "turn_on", turn_on)


@pytest.fixture
def traced_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`torch.compile` traces, and runs what it traced as it is; CUDA graphs are as if there were a GPU."""
    compile_by(monkeypatch, "eager")
    monkeypatch.setattr(trials.Trials, "peak_bytes", lambda *_: 2**20)
    monkeypatch.setattr(compilation, "unavailable", lambda *_: None)
    monkeypatch.setattr("selector.models.rewriting.optimize.ON_GPUS_ALONE", ())
    yield
    torch._dynamo.reset()


def name_of(model: Any) -> str:
    """Name of the arrangement that a model is in."""
    ours = isinstance(model.relu, drop_in.ReLU)
    call = model._compiled_call_impl
    if call is None:
        return "ours" if ours else "as given"
    return {None: "compiled", "reduce-overhead": "reduce_overhead"}[call.mode] + ("_ours" if ours else "")


def steps_take(monkeypatch: pytest.MonkeyPatch, milliseconds: Mapping[str, float]) -> None:
    """Steps of each arrangement take so long; 10 ms where nothing is said. What is compiled runs once."""
    step, run = timing.Steps.__call__, set()

    def steps(self: timing.Steps, count: int) -> list[float]:
        call: Any = self._model._compiled_call_impl
        if call is not None and call not in run:
            run.add(call)
            step(self, 1)
        return [milliseconds.get(name_of(self._model), 10.0)] * count

    monkeypatch.setattr(timing.Steps, "__call__", steps)


def compiled_functions() -> int:
    return sum(count for _, count in compilation._entries())


KEPT = {
    "as given": {"ours": 11.0, "compiled": 12.0, "compiled_ours": 12.0, "reduce_overhead": 10.0},
    "ours": {"ours": 9.0, "compiled": 12.0},
    "compiled": {"ours": 9.0, "compiled": 5.0, "compiled_ours": 6.0},
    "compiled_ours": {"ours": 9.0, "compiled": 5.0, "compiled_ours": 4.0},
    "reduce_overhead": {"compiled": 5.0, "compiled_ours": 6.0, "reduce_overhead": 4.0},
    "reduce_overhead_ours": {
        "ours": 9.0,
        "compiled": 6.0,
        "compiled_ours": 5.0,
        "reduce_overhead_ours": 4.0,
    },
}


@pytest.mark.parametrize("kept", KEPT)
def test_the_fastest_arrangement_stays(x: Tensor, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps_take(monkeypatch, KEPT[kept])
    model, before = Model(), compiled_functions()
    report = selector.optimize(model, x, arrangements=ALL)
    assert name_of(model) == kept
    assert report.kept == kept.removesuffix("_ours" if kept.startswith("reduce") else "none")
    rows = {one.name: one for one in report.arrangements}
    assert set(rows) == {"as given", *ALL}
    assert rows["as given"].step_ms == 10.0
    for name in ("compiled", "reduce_overhead"):
        assert rows[name].compile_s is not None
        assert rows[name].peak_bytes == 2**20
    assert rows[report.kept].why is None
    if kept == "as given":
        assert report.first_line.startswith("Nothing is faster here: the model is as it was.")
        assert compiled_functions() == before
    else:
        fastest = KEPT[kept][kept]
        assert report.first_line.startswith(f"A step (forward and backward) took 10 ms and takes {fastest:g}")
        assert rows[report.kept].times == report.times
        assert rows[report.kept].step_ms == fastest
    assert [one.path for one in report.replaced] == (["relu"] if "ours" in kept else [])
    selector.restore(model)
    assert name_of(model) == "as given"
    assert compiled_functions() == before


def test_a_report_has_a_table_and_the_same_as_data(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    steps_take(monkeypatch, KEPT["compiled"])
    report = selector.optimize(Model(), x, arrangements=ALL)
    lines = str(report).splitlines()
    start = lines.index("Arrangements:")
    assert lines[start + 1].split("  ")[1] == "arrangement"
    (row,) = (line for line in lines[start:] if line.startswith("  compiled "))
    assert "5 ms" in row
    assert "0.50 (0.50 to 0.50)" in row
    assert "  Kept: compiled." in lines
    data = report.to_dict()
    assert data["kept"] == "compiled"
    (found,) = (one for one in data["arrangements"] if one["name"] == "compiled")
    assert (found["step_ms"], found["replaced"], found["why"]) == (5.0, 0, None)
    (lost,) = (one for one in data["arrangements"] if one["name"] == "compiled_ours")
    assert lost["why"] == "slower than compiled: 1.20 (1.20 to 1.20) times as long"
    (relu,) = (one for one in report.left_alone if one.path == "relu")
    assert relu.why == "put back, because the fastest arrangement is without it: compiled"


def test_a_compiled_model_trains_is_copied_saved_and_restored(
    x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_take(monkeypatch, {"compiled_ours": 4.0, "compiled": 5.0})
    model, plain = Model(), Model()
    keys = list(model.state_dict())
    selector.optimize(model, x, arrangements=("compiled", "compiled_ours"))
    assert name_of(model) == "compiled_ours"
    assert list(model.state_dict()) == keys
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (model, plain)]
    for _ in range(2):
        for one, optimizer in zip((model, plain), optimizers, strict=True):
            optimizer.zero_grad()
            one(x).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(list(model.parameters()), list(plain.parameters()))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert name_of(other) == "ours"  # as torch has it: a copy is not compiled
        torch.testing.assert_close(other(x), model(x))
    again = selector.optimize(model, x, arrangements=("ours",))
    assert again.kept == "as given"  # which is compiled
    assert name_of(model) == "compiled_ours"
    assert selector.restore(model) == 2
    assert name_of(model) == "as given"


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_what_computes_something_else_is_not_kept(
    x: Tensor, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(graph: Any, _inputs: Any) -> Callable[..., Any]:
        return lambda *given: [2 * one if one.dim() > 1 else one for one in graph(*given)]

    compile_by(monkeypatch, wrong)
    steps_take(monkeypatch, {"compiled": 5.0})
    model = Model(share)
    report = selector.optimize(model, x, arrangements=("compiled",))
    assert name_of(model) == "as given"
    (why,) = (one.why for one in report.arrangements if one.name == "compiled")
    assert why is not None
    assert why.startswith("the model computed something else: output[0] differs by")


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


def test_no_compilation_begins_that_does_not_fit_into_the_budget(
    x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setitem(Budget.__init__.__kwdefaults__, "clock", lambda: clock[0])
    steps_take(monkeypatch, {"compiled": 5.0, "compiled_ours": 4.0})
    turn_on = compilation.turn_on

    def slow(model: nn.Module, mode: str | None) -> None:
        clock[0] += 40.0
        turn_on(model, mode)

    monkeypatch.setattr(compilation, "turn_on", slow)
    told: list[tuple[str, int, int]] = []
    report = selector.optimize(
        Model(), x, arrangements=ALL, progress=lambda *given: told.append(given), budget="1m"
    )
    why = {one.name: one.why for one in report.arrangements}
    expected = "20 s of the budget of 60 s were left, and compiling takes about 40 s: give a larger one"
    assert report.kept == "compiled"
    assert why["compiled_ours"] is not None
    assert why["compiled_ours"].startswith(expected)
    assert why["reduce_overhead"] == why["compiled_ours"]
    assert str(report).count("of the budget of 60 s") == 1
    assert told == [
        ("ours (60 s left)", 1, 4),
        ("compiled (60 s left)", 2, 4),
        ("compiled_ours (20 s left)", 3, 4),
        ("reduce_overhead (20 s left)", 4, 4),
    ]
    clock[0] = 0.0
    report = selector.optimize(Model(), x, arrangements=ALL, budget=1)
    assert not any(one.compile_s for one in report.arrangements)
    clock[0] = 0.0
    assert selector.optimize(Model(), x, arrangements=ALL, budget="10m").kept == "compiled_ours"


def test_only_what_is_faster_is_compiled_once_more_without_dropout(
    x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = []

    def counting(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    compile_by(monkeypatch, counting)
    for share, milliseconds, count in ((0.0, 5.0, 1), (0.5, 12.0, 1), (0.5, 5.0, 2)):
        graphs.clear()
        steps_take(monkeypatch, {"compiled": milliseconds})
        report = selector.optimize(Model(share), x, arrangements=("compiled",))
        assert (report.kept == "compiled") is (milliseconds < 10)
        assert len(graphs) == count


def test_what_takes_too_much_memory_is_not_kept(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    steps_take(monkeypatch, {"compiled": 5.0})
    monkeypatch.setattr(trials.Trials, "device_limit", 2**20)
    monkeypatch.setattr(trials.Trials, "peak_bytes", lambda *_: 2**21)
    report = selector.optimize(Model(), x, arrangements=("compiled",))
    assert report.kept == "as given"
    assert report.arrangements[-1].why == "a step takes 2 MiB, and allowed are 1 MiB"


def test_what_is_not_faster_than_the_model_as_given_in_the_end_is_not_kept(
    x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([0.9, 0.9, 1.01])  # ours, compiled against ours, compiled against the model as given

    def time_pairs(before: Callable[[int], Any], after: Callable[[int], Any], *_: Any, **__: Any) -> Outcome:
        before(1), after(1)
        return outcome([(10.0, 10.0 * next(found))] * 7)

    steps_take(monkeypatch, {})
    monkeypatch.setattr(trials, "time_pairs", time_pairs)
    model = Model()
    report = selector.optimize(model, x, arrangements=("ours", "compiled"))
    assert report.kept == name_of(model) == "as given"
    rows = {one.name: one for one in report.arrangements}
    assert rows["ours"].step_ms == 9.0
    assert rows["compiled"].why == "slower than as given: 1.01 (1.01 to 1.01) times as long"


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


def test_names_that_were_asked_for_stay_and_are_compiled_where_that_was_asked_for(
    x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_take(monkeypatch, {"ours": 12.0, "compiled": 5.0, "compiled_ours": 8.0})
    overrides = {"relu": "stand_in"}
    model = Model()
    assert selector.optimize(model, x, overrides=overrides).arrangements == ()
    assert name_of(model) == "ours"
    selector.restore(model)
    report = selector.optimize(model, x, overrides=overrides, arrangements=ALL)
    why = {one.name: one.why for one in report.arrangements}
    assert why["compiled"] == "the layers that were asked for stay: compiled_ours compiles with them"
    assert report.first_line.startswith("A step (forward and backward) took 10 ms and takes 8 ms")
    assert name_of(model) == report.kept == "compiled_ours"


def test_without_a_compiler_the_report_says_so_once(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    from torch._inductor import cpp_builder, exc

    def missing() -> str:
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    model = Model()
    report = selector.optimize(model, x)
    text = " ".join(str(report).split())
    assert text.count("no C++ compiler, which torch.compile needs on a CPU: install g++") == 1
    assert {one.name for one in report.arrangements if one.why} >= {"compiled", "compiled_ours"}
    assert name_of(model) == "as given"


@pytest.mark.parametrize("error", [KeyboardInterrupt, None])
def test_everything_of_the_users_is_as_before(
    x: Tensor, error: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupting(graph: Any, _inputs: Any) -> Any:
        if error is not None:
            raise error
        return graph

    compile_by(monkeypatch, interrupting)
    steps_take(monkeypatch, {})
    model = Model(0.1)
    model.first.weight.grad = torch.ones(4, 4)
    before, functions = copy.deepcopy(model), compiled_functions()
    state, given = torch.get_rng_state(), x.clone()
    members = {path: set(part.__dict__) for path, part in model.named_modules()}
    if error is None:
        selector.optimize(model, x, arrangements=ALL)
    else:
        with pytest.raises(error):
            selector.optimize(model, x, arrangements=ALL)
    assert name_of(model) == "as given"
    assert {path: set(part.__dict__) for path, part in model.named_modules()} == members
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, given)
    assert torch.equal(model.first.weight.grad, torch.ones(4, 4))
    assert model.last.weight.grad is None
    assert compiled_functions() == functions
    for name, one in before.state_dict().items():
        assert torch.equal(model.state_dict()[name], one), name


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
    reason = compilation.unavailable(model, "cpu")
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
