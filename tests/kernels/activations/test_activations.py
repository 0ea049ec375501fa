"""gelu, relu and silu: against torch, the fits, refusals, and the Triton kernels without a GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from made_devices import CPU, H200
from programs import run
from torch import nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.activations import fits
from kernel_selector.kernels.contract import Device, InvalidHyperparameter
from tests.grids import each_entry, in_turns, pairs_of

pytest.importorskip("triton", reason="Triton is not installed")

FOLDER = Path(__file__).parents[1] / "helpers"
V100 = Device(name="V100", kind="cuda", compute_capability=(7, 0))
TRITON = {
    "gelu": ["fused", "from_output"],
    "relu": ["bit_mask", "from_output"],
    "silu": ["fused", "from_output"],
}
FORMS = [("gelu", {}), ("gelu", {"approximate": "tanh"}), ("relu", {}), ("silu", {})]
TORCH = {"gelu": nn.functional.gelu, "relu": nn.functional.relu, "silu": nn.functional.silu}


@pytest.mark.parametrize(("operator", "form"), FORMS)
def test_reference_is_torchs_function(operator, form):
    problem = registry.operator(operator).problem(elements=1000, dtype="float64", **form)
    (given,) = registry.operator(operator).make_inputs(problem, "cpu", 0).args
    ours, torchs = (given.clone().requires_grad_() for _ in range(2))
    y, expected = registry.reference(problem)(ours), TORCH[operator](torchs, **form)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-15)
    y.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(ours.grad, torchs.grad, rtol=1e-10, atol=1e-14)


def cases_of(operator):
    """Of each size, form, dtype and mode; float32 where the slope is not fitted."""
    shapes = [{"elements": 1}, {"elements": 33}, {"elements": 4096}, {"elements": 10001}]
    forms = [form for name, form in FORMS if name == operator]
    return [
        {"operator": operator, **shape, **form, "dtype": dtype, "mode": mode}
        for shape in shapes
        for form in forms
        for dtype in ("float16", "bfloat16", "float32")
        for mode in ("training", "inference")
    ]


@pytest.mark.parametrize(
    "given",
    [batch for operator in TRITON for batch in in_turns(cases_of(operator), TRITON[operator], each_entry)],
)
def test_kernels_pass_the_gate_in_the_interpreter(given):
    given = [
        {**one, "implementations": ["fused"]}
        if one["dtype"] == "float32" and one["operator"] != "relu"
        else one
        for one in given
    ]
    results = run("interpreted.py", given=given)
    assert len(results) == pairs_of(given)
    assert [result for result in results if not result[2]] == []


@pytest.mark.parametrize(("operator", "form"), FORMS)
def test_kernels_are_as_torch_at_special_values_and_in_other_calls(operator, form):
    given = [
        {"operator": operator, "elements": 1024, "dtype": dtype, **form} for dtype in ("float32", "bfloat16")
    ]
    names = TRITON[operator]
    results = run("interpreted_activations.py", *names, given=given)
    assert len(results) == sum(name != "from_output" or operator == "relu" for name in names) + len(names)


def cases():
    """Kernels, types and constants that are compiled: each branch of the sources, 64-bit and odd sizes."""
    for target, dtype, block in ((80, "fp32", 1024), (80, "fp16", 2048), (90, "bf16", 2048)):
        for kind in ("gelu", "gelu_tanh", "silu", "relu"):
            common = {"target": target, "dtype": dtype}
            constants = {"KIND": kind, "BLOCK": block}
            forward = {**common, "kernel": "pointwise_forward_kernel", "constants": constants}
            yield {**forward, "absent": ["bits_ptr"], "wide": ["elements"]}
            yield {**forward, "odd": ["elements"]}
            backward = {**common, "kernel": "pointwise_backward_kernel"}
            inputs = {**backward, "constants": {**constants, "OUTPUT": False}, "absent": ["bits_ptr"]}
            yield {**inputs, "odd": ["elements"]}
            outputs = {**backward, "constants": {**constants, "OUTPUT": True}}
            yield {**outputs, "wide": ["elements"], "odd": ["elements"]}
        bits = {"KIND": "relu", "BLOCK": block, "OUTPUT": False}
        yield {**backward, "constants": bits, "absent": ["kept_ptr"]}
        yield {**forward, "constants": {**constants, "elements": 1}}


@pytest.mark.usefixtures("compilations")
def test_kernels_compile_for_gpus_that_are_not_here_and_load_16_bytes_at_once():
    given = list(cases())
    results = run("compiled_activations.py", given=given)
    assert len(results) == len(given)
    assert [case for case, wide in results if not wide] == []


def fitting():
    spec = importlib.util.spec_from_file_location("fit_activations", FOLDER / "fit_activations.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["GELU", "GELU_TANH", "SILU"])
def test_coefficients_are_those_that_the_script_derives(name):
    script = fitting()
    x0, y0, last, falling, rising = script.fit(script.ACTIVATIONS[name])
    committed = getattr(fits, name)
    assert committed[:3] == pytest.approx((x0, y0, last), abs=1e-9)
    # of the polynomials the values count: coefficients may trade places within rounding errors
    t = np.linspace(-1, 1, 101)
    np.testing.assert_allclose(np.polyval(committed.falling, t), np.polyval(falling, t), atol=1e-6)
    np.testing.assert_allclose(np.polyval(committed.rising, t), np.polyval(rising, t), atol=1e-6)


@pytest.mark.parametrize("name", ["GELU", "GELU_TANH", "SILU"])
@pytest.mark.parametrize("spread", ["even", "normal"])
def test_derivative_from_a_rounded_output_is_as_good_as_bfloat16(name, spread):
    """Mean error over x in [-8, 8] below that of rounding the exact derivative itself."""
    activation, fit = fitting().ACTIVATIONS[name], getattr(fits, name)
    normal = torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (torch.linspace(-8, 8, 200_001, dtype=torch.float64) if spread == "even" else normal).numpy()
    y = torch.from_numpy(activation.y(x)).bfloat16().float().numpy()
    exact = activation.slope(x)
    slope = from_output(fit, y, x >= fit.lowest_x)
    rounding = np.abs(torch.from_numpy(exact).bfloat16().double().numpy() - exact).mean()
    error = np.abs(slope - exact)
    assert error.mean() < 8.4e-4
    assert error.mean() < rounding or spread == "even"
    assert error.max() < 2e-2
    unrounded = from_output(fit, activation.y(x).astype(np.float32), x >= fit.lowest_x)
    assert np.abs(unrounded - exact).max() < 6e-4


def from_output(fit, y, rising):
    """What `triton_functions` computes, in float32."""
    s = np.sqrt(np.maximum(y - np.float32(fit.lowest_y), 0), dtype=np.float32)
    table = np.float32(fit.table())
    end = 7 + len(fit.falling)
    falling = y * s * np.polyval(table[7:end], s * table[2] - 1)
    s = np.minimum(s, table[3])
    return np.where(rising, s * np.polyval(table[end:], s * table[4] - 1), falling)


def test_a_fault_in_the_fit_is_found():
    """Tempo's released kernel had the sign of one shift wrong: the gate would have refused it."""
    fitted = [(operator, form) for operator, form in FORMS if operator != "relu"]
    given = [{"operator": name, "elements": 5000, "dtype": "bfloat16", **form} for name, form in fitted]
    results = run("interpreted_activations.py", "--wrong-fit", "from_output", given=given)
    assert [passed for _, _, passed, _ in results] == [False] * len(fitted)


@pytest.mark.parametrize(
    ("operator", "name", "given", "device", "reason"),
    [
        ("gelu", "fused", {}, CPU, "compiles for GPUs"),
        ("gelu", "fused", {}, V100, "compute capability 8.0"),
        ("gelu", "fused", {"dtype": "float64"}, H200, "float64"),
        ("gelu", "from_output", {"dtype": "float32"}, H200, "fitted to 5e-4"),
        ("silu", "from_output", {"dtype": "float32"}, H200, "fitted to 5e-4"),
        ("relu", "bit_mask", {}, CPU, "compiles for GPUs"),
        ("silu", "torch_compile", {}, CPU, "C++ compiler"),
    ],
)
def test_refusals_say_why(operator, name, given, device, reason):
    problem = registry.operator(operator).problem(elements=8, **given)
    assert reason in registry.implementation(operator, name).unsupported(problem, device)


def test_bad_values_are_refused():
    with pytest.raises(InvalidHyperparameter, match="approximate='sigmoid': expected one of none, tanh"):
        registry.operator("gelu").problem(elements=8, approximate="sigmoid")
    with pytest.raises(InvalidHyperparameter, match="elements=0"):
        registry.operator("relu").problem(elements=0)


@pytest.mark.parametrize("operator", TRITON)
def test_a_dtype_without_kernels_is_an_error(operator):
    for name in TRITON[operator]:
        problem = registry.operator(operator).problem(elements=8, dtype="bfloat16")
        module = registry.implementation(operator, name).build(problem)
        with pytest.raises(TypeError, match=r"got torch\.float64"):
            module(torch.zeros(8, dtype=torch.float64))
