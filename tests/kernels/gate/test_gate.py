"""The gate lets the true modules through, and no planted fault."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.gate import TOLERANCES, Gate, Tolerance, poisoned_memory
from kernel_selector.kernels.gate.runs import Runs
from kernel_selector.kernels.gate.tolerance import PEAK, Bias, Error

OPERATOR = registry.operator("lstm")


def make_gate(**hyperparameters):
    return Gate(OPERATOR.problem({"hidden": 24, "batch": 5, "seq": 9, **hyperparameters}), "cpu")


@pytest.fixture(scope="module")
def gate():
    return make_gate(bidirectional=True)


class Faulty(nn.LSTM):
    """nn.LSTM with its results changed by `fault(y, h, c)`."""

    def __init__(self, problem, fault):
        super().__init__(
            problem["input"],
            problem["hidden"],
            problem["layers"],
            dropout=problem["dropout"],
            bidirectional=problem["bidirectional"],
            dtype=getattr(torch, problem["dtype"]),
        )
        self.fault = fault

    def forward(self, x, hx):
        y, (h, c) = super().forward(x, hx)
        return self.fault(y, h, c)


class Scaled(torch.autograd.Function):
    """Passes values through and scales the gradient."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


def with_nan(y, h, c):
    y = y.clone()
    y[3, 2, 1] = float("nan")
    return y, (h, c)


def without_a_row(y, h, c):
    keep = torch.ones_like(y)
    keep[4, 1] = 0
    return y * keep, (h, c)


def with_unwritten_row(y, h, c):
    written = torch.empty_like(y)
    written[:-1] = y[:-1]
    return written, (h, c)


FORWARD_FAULTS = {
    "scaled by 1.01": lambda y, h, c: (y * 1.01, (h, c)),
    "scaled by 1.001": lambda y, h, c: (y * 1.001, (h, c)),
    "shifted by 0.001": lambda y, h, c: (y + 0.001, (h, c)),
    "one nan": with_nan,
    "dropped row": without_a_row,
    "unwritten row": with_unwritten_row,
    "all zero": lambda y, h, c: (y * 0, (h, c)),
    "wrong dtype": lambda y, h, c: (y.double(), (h, c)),
    "wrong shape": lambda y, h, c: (y[:-1], (h, c)),
    "wrong final hidden state": lambda y, h, c: (y, (h.flip(0), c)),
    "wrong final cell state": lambda y, h, _c: (y, (h, h)),
    "missing final state": lambda y, h, _c: (y, (h,)),
    "reversed in time": lambda y, h, c: (y.flip(0), (h, c)),
}
GRADIENT_FAULTS = {
    "cut": lambda y, h, c: (y.detach(), (h.detach(), c.detach())),
    "cut at one output": lambda y, h, c: (y, (h, c.detach())),
    "scaled by 1.001": lambda y, h, c: (Scaled.apply(y, 1.001), (h, c)),
    "not finite": lambda y, h, c: (Scaled.apply(y, float("inf")), (h, c)),
}


@pytest.mark.parametrize("fault", FORWARD_FAULTS)
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_a_wrong_output_fails(gate, fault, mode):
    if mode == "inference":
        gate = make_gate(bidirectional=True, mode="inference")
    result = gate.check(Faulty(gate.problem, FORWARD_FAULTS[fault]))
    assert not result.passed
    assert "output" in result.detail


@pytest.mark.parametrize("fault", GRADIENT_FAULTS)
def test_a_wrong_gradient_fails(gate, fault):
    result = gate.check(Faulty(gate.problem, GRADIENT_FAULTS[fault]))
    assert not result.passed
    assert "gradient of" in result.detail


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("fault", ["scaled by 1.01", "dropped row", "one nan", "wrong final cell state"])
def test_wrong_outputs_fail_in_every_dtype(dtype, fault):
    gate = make_gate(dtype=dtype)
    assert gate.check(Faulty(gate.problem, lambda y, h, c: (y, (h, c)))).passed
    assert not gate.check(Faulty(gate.problem, FORWARD_FAULTS[fault])).passed


def test_swapped_gates_fail(gate):
    class Swapped(nn.LSTM):
        def forward(self, x, hx):
            weights = [torch.roll(weight, 24, 0) for weight in self._flat_weights]
            y, h, c = torch._VF.lstm(x, hx, weights, True, 1, 0.0, True, True, False)
            return y, (h, c)

    result = gate.check(Swapped(24, 24, bidirectional=True))
    assert not result.passed
    assert result.worst_error_ratio > 1


def test_one_cut_parameter_fails(gate):
    class Cut(nn.LSTM):
        def forward(self, x, hx):
            weights = [*self._flat_weights]
            weights[1] = weights[1].detach()
            y, h, c = torch._VF.lstm(x, hx, weights, True, 1, 0.0, True, True, False)
            return y, (h, c)

    result = gate.check(Cut(24, 24, bidirectional=True))
    assert result.detail == "gradient of parameter weight_hh_l0 is missing"


@pytest.mark.parametrize("changed", ["argument[0]", "argument[1][1]", "bias_hh_l0"])
def test_a_changed_input_fails(gate, changed):
    class Changing(nn.LSTM):
        def forward(self, x, hx):
            target = {"argument[0]": x, "argument[1][1]": hx[1], "bias_hh_l0": self.bias_hh_l0}[changed]
            results = super().forward(x.clone(), (hx[0].clone(), hx[1].clone()))
            target.detach()[(0,) * target.dim()] += 1
            return results

    # of a parameter autograd itself notices, unless the module hides it behind a detached view
    gate = make_gate(bidirectional=True, mode="inference")
    result = gate.check(Changing(24, 24, bidirectional=True))
    assert result.detail.endswith(f"{changed} was changed in place")


def test_results_in_memory_of_the_module_fail(gate):
    class Static(nn.LSTM):
        kept = None

        def forward(self, x, hx):
            y, states = super().forward(x, hx)
            if self.kept is None:
                self.kept = y
            else:
                self.kept.detach().copy_(y.detach())
            return self.kept, states

    assert not gate.check(Static(24, 24, bidirectional=True)).passed


def test_a_shape_that_changes_between_runs_fails(gate):
    class Shrinking(nn.LSTM):
        calls = 0

        def forward(self, x, hx):
            self.calls += 1
            y, states = super().forward(x, hx)
            return (y if self.calls == 1 else y[1:]), states

    assert "shape" in gate.check(Shrinking(24, 24, bidirectional=True)).detail


def test_the_default_itself_can_fail():
    gate = make_gate()
    assert gate.check(registry.implementation("lstm", "torch_lstm").build(gate.problem)).passed
    assert not gate.check(Faulty(gate.problem, FORWARD_FAULTS["scaled by 1.001"])).passed


def refuse(*_):
    raise RuntimeError("no kernel\nat all")


def run_out_of_memory(*_):
    raise torch.OutOfMemoryError("no memory\nat all")


# what is planted in place of nn.LSTM, and what each result then says of it
WRONG, UNUSABLE = "torch_lstm itself is wrong here", "torch_lstm sets no bound here"
BROKEN_DEFAULTS = {
    "wrong": (lambda y, h, c: (y * 1.24, (h, c)), f"{WRONG} (output[0]: error 0.24 RMS)"),
    "raises": (refuse, f"{UNUSABLE} (RuntimeError: no kernel)"),
    "gives nan": (lambda y, h, c: (y, (h, c * float("nan"))), f"{WRONG} (output[1][1]: error inf RMS)"),
    "wrong shape": (FORWARD_FAULTS["wrong shape"], f"{UNUSABLE} (ValueError: output[0] has shape"),
    "wrong gradient": (GRADIENT_FAULTS["cut at one output"], f"{WRONG} (gradient of"),
    "no gradient": (GRADIENT_FAULTS["cut"], f"{UNUSABLE} (ValueError: gradient of"),
}


@pytest.mark.parametrize("fault", BROKEN_DEFAULTS)
def test_a_broken_default_excuses_nobody(monkeypatch, fault):
    problem = OPERATOR.problem(hidden=24, batch=5, seq=9)
    change, note = BROKEN_DEFAULTS[fault]
    right = registry.implementation("lstm", "torch_lstm").build(problem)

    class Broken:
        def build(self, problem):
            return Faulty(problem, change)

    monkeypatch.setattr(registry, "implementation", lambda *_: Broken())
    gate = Gate(problem, "cpu")
    for module, passes in ((right, True), (Faulty(problem, FORWARD_FAULTS["scaled by 1.01"]), False)):
        result = gate.check(module)
        assert result.passed == passes, result
        assert note in result.detail
        assert "the equations in float32 set the bound" in result.detail
    if fault != "raises":
        assert not gate.check(Broken().build(problem)).passed


@pytest.mark.parametrize("last", range(5))
def test_a_default_that_runs_out_of_memory_leaves_all_unjudged(monkeypatch, last):
    """In whichever call: that says nothing of the equations, and their bound alone rejects what is right."""
    problem = OPERATOR.problem(hidden=24, batch=5, seq=9, layers=2, dropout=0.5)
    right = registry.implementation("lstm", "torch_lstm").build(problem)
    calls = []

    def large(y, h, c):
        calls.append(y)
        return run_out_of_memory() if len(calls) > last else (y, (h, c))

    class Planted:
        def build(self, problem):
            return Faulty(problem, large)

    monkeypatch.setattr(registry, "implementation", lambda *_: Planted())
    with pytest.raises(torch.OutOfMemoryError):
        Gate(problem, "cpu").check(right)
    assert len(calls) == last + 1


def test_a_default_that_gives_no_number_leaves_the_floors():
    floor, cap = 1e-3, 1e-2
    tolerance = Tolerance(floor=floor, cap=cap)
    for broken in (Error(math.inf, math.inf), Error(math.nan, math.nan), Error(1e-9, math.inf)):
        assert broken.allowed(tolerance) == Error(floor, PEAK * floor)
    assert Error(0.24, 1.0).allowed(tolerance) == Error(cap, PEAK * cap)
    assert Error(2e-3, 1e-9).allowed(tolerance) == Error(4e-3, PEAK * floor)


def test_errors_of_a_module_pass_through(gate):
    with pytest.raises(torch.OutOfMemoryError):
        gate.check(Faulty(gate.problem, run_out_of_memory))


def test_a_result_names_the_worst_tensor_and_is_repeatable(gate):
    module = registry.implementation("lstm", "hoisted").build(gate.problem)
    first, second = gate.check(module), make_gate(bidirectional=True).check(module)
    assert first == second
    assert first.passed
    assert 0 < first.worst_error_ratio <= 1
    assert "allowed" in first.detail
    assert all(parameter.grad is None for parameter in module.parameters())


def test_other_seeds_give_other_inputs():
    problem = OPERATOR.problem(hidden=4, batch=2, seq=3)
    a, b = Gate(problem, "cpu", seed=1), Gate(problem, "cpu", seed=2)
    assert not torch.equal(a.inputs.args[0], b.inputs.args[0])
    assert a.inputs.args[0].dtype == torch.float32


def test_poison_covers_the_empty_family_and_ends():
    with poisoned_memory():
        made = [
            torch.empty(3),
            torch.empty(3, dtype=torch.float16),
            torch.empty_like(torch.zeros(2)),
            torch.empty_strided((2, 2), (1, 2)),
            torch.zeros(1).new_empty(4),
        ]
        assert all(tensor.isnan().all() for tensor in made)
        assert torch.empty(3, dtype=torch.int64).dtype == torch.int64
    assert torch.empty.__name__ == "empty"


def test_poison_ends_after_an_error():
    original = torch.empty
    with pytest.raises(RuntimeError, match="planted"), poisoned_memory():
        raise RuntimeError("planted")
    assert torch.empty is original


def test_the_table_is_complete_and_ordered():
    dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
    assert set(TOLERANCES) == {(dtype, kind) for dtype in dtypes for kind in ("output", "gradient")}
    for tolerance in TOLERANCES.values():
        assert 0 < tolerance.floor < tolerance.cap < 0.2
    for kind in ("output", "gradient"):
        floors = [TOLERANCES[dtype, kind].floor for dtype in dtypes]
        assert floors == sorted(floors)


def test_the_gates_own_modules_draw_no_parameters_and_are_built_on_the_device():
    before = torch.get_rng_state()
    inputs = make_gate().inputs
    assert torch.equal(torch.get_rng_state(), before)
    runs = Runs(OPERATOR.problem({"hidden": 24, "batch": 5, "seq": 9}), "meta", 0, inputs)
    for build in (registry.reference, registry.implementation("lstm", OPERATOR.default).build):
        assert {parameter.device.type for parameter in runs.build(build).parameters()} == {"meta"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_compared_stays_as_it_is(dtype):
    actual, expected = torch.randn(40, 50, dtype=dtype), torch.randn(40, 50, dtype=dtype)
    before = actual.clone(), expected.clone()
    Error.of(actual, expected, 2.0)
    Bias.of(actual, expected)
    assert torch.equal(actual, before[0])
    assert torch.equal(expected, before[1])


def test_the_host_waits_for_the_device_a_few_times_a_check(gate, monkeypatch):
    """Each wait takes its turn with what other processes do on the device; there are twenty tensors."""
    waits = []
    for name in ("tolist", "item", "__bool__", "__float__", "__int__"):
        own = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda tensor, own=own: waits.append(tensor) or own(tensor))
    monkeypatch.setattr(torch, "equal", lambda *_: pytest.fail("waits for each pair of tensors"))
    module = registry.implementation("lstm", OPERATOR.default).build(gate.problem)
    assert gate.check(module).passed
    assert (
        len(waits) <= 8
    )  # of each of three calls one for errors and one for arguments, two where there are two
