"""GELU by polynomials: coefficients, errors in float32 against float64, and its feed-forward layers."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from made_devices import CPU, H200
from programs import run
from torch.nn.functional import gelu

from kernel_selector.kernels import registry
from kernel_selector.kernels.activations import polynomials
from tests.grids import each_entry, in_turns, pairs_of

NAMES = ["polynomial_gelu", "polynomial_gelu_recompute"]
FORMS = [("GELU", "none"), ("GELU_TANH", "tanh")]


def fine_grid():
    """x in [-12, 12] in steps of 1.2e-5, and beyond it up to the ends of float32."""
    far = np.geomspace(12, 3e38, 2000)
    return np.concatenate((-far, np.linspace(-12, 12, 2_000_001), far)).astype(np.float32)


def around_half(x, coefficients):
    """What `triton_polynomials` computes, in float32 and without fused multiplications."""
    s = x * x - np.float32(polynomials.SHIFT)
    value = np.full_like(s, coefficients[0])
    for one in coefficients[1:]:
        value = value * s + np.float32(one)
    return value * x + np.float32(0.5)


@pytest.mark.parametrize("name", ["GELU", "GELU_TANH"])
def test_coefficients_are_those_that_the_script_derives(name, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "helpers")  # the script imports another one
    script = importlib.import_module("fit_polynomials")
    assert (script.SHIFT, script.SLOPE[0]) == (polynomials.SHIFT, polynomials.REACH)
    found = script.fit(name)
    # of the polynomials the values count: coefficients may trade places within rounding errors
    for ours, derived, reach in zip(getattr(polynomials, name), found, (4.7, 5.1), strict=True):
        x = np.linspace(0, reach, 101)
        s = x**2 - polynomials.SHIFT
        np.testing.assert_allclose(x * np.polyval(ours, s), x * np.polyval(derived, s), atol=1e-8)


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_output_errs_by_less_than_16_bits_show(name, form):
    x = fine_grid()
    with np.errstate(over="ignore"):  # far out the polynomial is infinite, and then cut off
        share = np.clip(around_half(x, getattr(polynomials, name).share), 0, 1)
    y = gelu(torch.from_numpy(x).double(), approximate=form).numpy()
    exact = np.divide(y, x, out=np.full_like(y, 0.5), where=x != 0)
    assert np.abs(share - exact).max() < 2e-6
    assert np.abs(x * share - y).max() < 8e-6
    assert set(share[np.abs(x) > 5]) == {0, 1}


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_slope_errs_by_less_than_16_bits_show(name, form):
    x = fine_grid()
    stopped = np.clip(x, -np.float32(polynomials.REACH), np.float32(polynomials.REACH))
    slope = around_half(stopped, getattr(polynomials, name).slope)
    near = torch.from_numpy(np.clip(x, -30, 30)).double()  # torch's own is NaN far out, where it is 0 or 1
    exact = torch.ops.aten.gelu_backward(torch.ones_like(near), near, approximate=form).numpy()
    assert np.abs(slope - exact).max() < 6e-6
    far = np.abs(x) > 7
    assert np.abs(slope - exact)[far].max() < 1e-7


def problems():
    """Blocks of one row, without biases, with dropout, and with two tiles of a program."""
    shapes = [
        {"rows": 40, "hidden": 16, "inner": 264, "dropout": 0.1},
        {"rows": 33, "hidden": 7, "inner": 65, "bias": False},
        {"rows": 1, "hidden": 1, "inner": 1},
    ]
    each = itertools.product(shapes, ("gelu", "gelu_tanh"), ("float16", "bfloat16"))
    given = [
        {"operator": "feed_forward", **shape, "activation": activation, "dtype": dtype}
        for shape, activation, dtype in each
    ]
    given = [given[0], given[3], *given[1:3], *given[4:]]  # both forms and both types first
    large = {**given[0], "rows": 2100, "hidden": 4, "inner": 24, "dropout": 0.0}
    return [*given, large, *({**one, "mode": "inference"} for one in given[:4])]


@pytest.mark.parametrize("given", in_turns(problems(), NAMES, each_entry))
def test_layers_pass_the_gate_in_the_interpreter(given):
    results = run("interpreted.py", given=given)
    assert len(results) == pairs_of(given)
    assert [result for result in results if not result[2]] == []


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_layers_replay_dropout_and_take_other_calls_in_the_interpreter(activation):
    given = [{"rows": 37, "hidden": 8, "inner": 150, "activation": activation, "dtype": "bfloat16"}]
    assert len(run("interpreted_feed_forward.py", *NAMES, given=given)) == len(NAMES)


def cases():
    """The kernels as the layers launch them."""
    for target, dtype, kind in ((80, "fp16", "gelu"), (90, "bf16", "gelu_tanh"), (90, "bf16", "gelu")):
        forward = {"target": target, "dtype": dtype, "kernel": "polynomial_forward_kernel"}
        tile = {"KIND": kind, "ROWS": 16, "GROUPS": 16}
        yield {**forward, "constants": tile}
        yield {**forward, "constants": {**tile, "GROUPS": 32}, "absent": ["seed_ptr"]}
        backward = {**forward, "kernel": "polynomial_backward_kernel", "constants": {**tile, "STEPS": 8}}
        for absent in ([], ["seed_ptr"]):
            yield {**backward, "absent": absent}
            yield {**backward, "absent": ["a_ptr", *absent]}
        yield {**backward, "absent": ["sums_ptr"]}


@pytest.mark.usefixtures("compilations")
def test_kernels_compile_for_gpus_that_are_not_here_and_load_16_bytes_at_once():
    given = list(cases())
    results = run("compiled_activations.py", given=given)
    assert len(results) == len(given)
    assert [case for case, wide in results if not wide] == []


def problem_of(**given):
    return registry.operator("feed_forward").problem(
        {"rows": 12, "hidden": 6, "inner": 20, "dtype": "bfloat16", **given}
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("given", "device", "reason"),
    [
        ({"activation": "silu"}, H200, "those of GELU, not of silu"),
        ({"dtype": "float32"}, H200, "rounding to 16 bits hides"),
        ({"dtype": "float64"}, H200, "not float64"),
        ({}, CPU, "compiles for GPUs"),
    ],
)
def test_refusals_say_why(name, given, device, reason):
    unsupported = registry.implementation("feed_forward", name).unsupported
    assert reason in unsupported(problem_of(**given), device)
    assert unsupported(problem_of(), H200) is None


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"activation": "relu"}, "compute gelu and gelu_tanh, got relu: take `fused`"),
        ({"dtype": "float32"}, r"compute float16 and bfloat16, got torch\.float32: convert"),
        ({}, "for GPUs, got a tensor on cpu: move"),
    ],
)
def test_what_layers_do_not_compute_is_an_error(given, error):
    module = registry.implementation("feed_forward", "polynomial_gelu").build(problem_of(**given))
    with pytest.raises(TypeError, match=error):
        module(torch.randn(3, 6, dtype=module.linear1.weight.dtype))


@pytest.mark.parametrize(("name", "kept"), list(zip(NAMES, (4, 2), strict=True)))
def test_what_is_kept_between_the_passes(name, kept):
    problem = problem_of(rows=8192, hidden=1024, inner=4096)
    saved = registry.implementation("feed_forward", name).work(problem).saved_bytes
    assert saved == kept * 8192 * 4096 + 2 * 8192 * 1024
