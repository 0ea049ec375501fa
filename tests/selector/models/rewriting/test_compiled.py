"""Models that `optimize` compiles: the fastest arrangement stays, whatever loses leaves nothing behind."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import selector
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from selector import Selector
from selector.models.rewriting import compilation, trials
from selector.models.rewriting.budget import Budget
from selector.models.rewriting.device_times import DeviceTimes
from selector.models.rewriting.paired_timing import Outcome, outcome
from tests.selector.models.rewriting.compiled import Model, compile_by, name_of, steps_take

pytestmark = pytest.mark.usefixtures("stand_ins", "relu_promised", "traced_alone")

CHOOSE = Selector.choose  # before any test promises something else
ALL = ("ours", "compiled", "compiled_ours", "reduce_overhead", "reduce_overhead_ours")


@pytest.fixture
def x() -> Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


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
    assert report.kept == kept
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


@pytest.mark.parametrize("compiled", ["compiled", "reduce_overhead"])
@pytest.mark.parametrize("ours", ["launched", "compiled", "replayed"])
def test_compiled_models_have_the_layers_that_are_fastest_compiled(
    x: Tensor, ours: str, compiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_one_regime(self: Selector, operator: str, **more: Any) -> Any:
        fastest = "stand_in" if operator == "relu" and more["regime"] == ours else None
        found = CHOOSE(self, operator, **{**more, "override": fastest or registry.operator(operator).default})
        return replace(found, source="model")

    def faster(self: DeviceTimes, problem: Problem) -> tuple[str, str] | None:
        """Replayed, the stand-in takes the device less time."""
        named = problem.operator == "relu" and ours == "replayed" and self._replayed
        return ("stand_in", "less of the device's time") if named else None

    monkeypatch.setattr(Selector, "choose", in_one_regime)
    monkeypatch.setattr(DeviceTimes, "faster", faster)
    steps_take(monkeypatch, {"ours": 9.0, compiled: 5.0, f"{compiled}_ours": 4.0})
    model = Model()
    report = selector.optimize(model, x, arrangements=("ours", compiled, f"{compiled}_ours"))
    rows = {one.name: one for one in report.arrangements}
    if ours != "launched":
        assert rows["ours"].why == "none of its layers can be replaced"
    if ours != "compiled":
        all_left = "all of its layers are left to the compiler, which is said to be faster"
        assert rows[f"{compiled}_ours"].why == (
            all_left if ours == "launched" else "none of its layers can be replaced"
        )
        assert report.kept == name_of(model) == compiled
    else:
        assert report.kept == name_of(model) == f"{compiled}_ours"
        assert [one.path for one in report.replaced] == ["relu"]
        assert "relu" not in [one.path for one in report.left_alone]


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


@pytest.mark.parametrize("graphs_are_wrong", [False, True])
def test_the_fastest_that_computes_the_same_is_kept_and_no_other_is_checked(
    x: Tensor, graphs_are_wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def backend(wrong: bool) -> Callable[..., Any]:
        def made(graph: Any, _inputs: Any) -> Callable[..., Any]:
            return lambda *given: [2 * one if wrong and one.dim() > 1 else one for one in graph(*given)]

        return made

    def turn_on(model: nn.Module, mode: str | None) -> None:
        compilation.compile_in_place(model, backend=backend(graphs_are_wrong and mode is not None))
        model._compiled_call_impl.mode = mode  # type: ignore[union-attr]

    checked, differs = [], trials.Trials.differs

    def counted(self: trials.Trials, trial: Any, original: Any) -> str | None:
        checked.append(trial.name)
        return differs(self, trial, original)

    monkeypatch.setattr(compilation, "turn_on", turn_on)
    monkeypatch.setattr(trials.Trials, "differs", counted)
    steps_take(monkeypatch, {"compiled": 6.0, "compiled_ours": 5.0, **KEPT["reduce_overhead"], "ours": 9.0})
    model, before = Model(0.5), compiled_functions()
    report = selector.optimize(model, x, arrangements=ALL, budget="10m")
    why = {one.name: one.why for one in report.arrangements}
    if graphs_are_wrong:
        assert checked == ["reduce_overhead", "compiled"]
        assert report.kept == name_of(model) == "compiled"
        assert why["compiled"] is None
        assert str(why["reduce_overhead"]).startswith(
            "the model computed something else: output[0] differs by"
        )
        assert report.times is not None
        assert (report.times.before_ms, report.times.after_ms) == (10.0, 5.0)
    else:
        assert checked == ["reduce_overhead"]
        assert report.kept == name_of(model) == "reduce_overhead"
    selector.restore(model)
    assert compiled_functions() == before


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
    assert why["reduce_overhead"] == why["reduce_overhead_ours"] == why["compiled_ours"]
    assert str(report).count("of the budget of 60 s") == 1
    assert told == [("ours (60 s left)", 1, 5), ("compiled (60 s left)", 2, 5)]
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
