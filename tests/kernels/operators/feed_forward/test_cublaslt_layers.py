"""Layers over cuBLASLt's products, on a twin of the library: the gate, other calls, memory, refusals."""

from __future__ import annotations

import pytest
import torch
from made_devices import CPU, H200, T4
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import gelu, linear

from kernel_selector.kernels import registry
from kernel_selector.kernels.gate import Gate

BOTH = ["cublaslt", "cublaslt_recompute"]
OPERATOR = registry.operator("feed_forward")
MORE = [
    {"rows": rows, "hidden": 16, "inner": inner, "activation": activation, "bias": bias}
    for rows, inner in ((1, 8), (13, 136))
    for activation in ("relu", "gelu_tanh")
    for bias in (True, False)
]


def problem_of(**given):
    return OPERATOR.problem(given)


def implementation(name):
    return registry.implementation("feed_forward", name)


def accepted():
    """(name, hyperparameters) of all that the gate is to see."""
    for name in BOTH:
        for shape in (*OPERATOR.examples, *MORE):
            for dtype in ("bfloat16", "float16"):
                for mode in ("training", "inference"):
                    given = {**shape, "dtype": dtype, "mode": mode}
                    if implementation(name).unsupported(problem_of(**given), H200) is None:
                        yield name, given


CASES = list(accepted())


def layer(name, **given):
    torch.manual_seed(0)
    given = {"rows": 12, "hidden": 16, "inner": 24, "activation": "gelu_tanh", "dtype": "bfloat16", **given}
    return implementation(name).build(problem_of(**given))


@pytest.mark.parametrize(("name", "given"), CASES)
def test_whatever_is_not_refused_passes_the_gate(lt, name, given):
    problem = problem_of(**given)
    result = Gate(problem, "cpu").check(implementation(name).build(problem))
    assert result.passed, result.detail
    assert lt.taken
    assert lt.complaints == []


def test_the_gate_sees_every_layer():
    assert {name for name, _ in CASES} == set(BOTH)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("shape", [(16,), (3, 16), (2, 3, 16), (0, 16), (2, 0, 16)])
def test_any_leading_axes_and_none(lt, name, shape):
    module = layer(name)
    x = torch.randn(shape).bfloat16().requires_grad_()
    y = module(x)
    expected = exact(module, x)
    torch.testing.assert_close(y, expected.bfloat16(), rtol=0.02, atol=0.02)
    found = torch.autograd.grad(y.sum(), (x, *module.parameters()))
    wanted = torch.autograd.grad(expected.sum(), (x, *module.parameters()))
    torch.testing.assert_close(found, wanted, rtol=0.03, atol=0.03)
    assert bool(lt.taken) == bool(x.numel())


def exact(module, x):
    """The layer of torch's operations in float64."""
    w1, b1, w2, b2 = (one.double() for one in module.weights)
    h = linear(x.double(), w1, b1)
    return linear(h.relu() if module.activation == "relu" else gelu(h, approximate="tanh"), w2, b2)


@pytest.mark.parametrize("name", BOTH)
def test_strided_inputs_and_gradients_give_the_same(lt, name):
    module = layer(name)
    given = torch.randn(10, 32).bfloat16()
    whole = given[:, 8:24].clone().requires_grad_()
    part = given[:, 8:24].requires_grad_()
    scale = torch.randn(16, 10).bfloat16()
    for upstream in (scale.t(), scale[:, :1].t().expand(10, 16), scale[:1, :1].expand(10, 16)):
        results = [torch.autograd.grad(module(x), x, upstream)[0] for x in (whole, part)]
        results.append(torch.autograd.grad(module(whole), whole, upstream.contiguous())[0])
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])
    assert lt.complaints == []


@pytest.mark.parametrize("name", BOTH)
def test_autocast_computes_in_the_narrow_dtype(lt, name):
    lt.algorithms = [(0, 0)]  # which leaves nothing to time
    module = layer(name, dtype="float32")
    x = torch.randn(6, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), exact(module, x), rtol=0.05, atol=0.05)
    y.float().sum().backward()
    assert {one.grad.dtype for one in (x, *module.parameters())} == {torch.float32}
    assert len(lt.taken) == 2 + 4
    with pytest.raises(RuntimeError, match=r"not of torch\.float32.*under torch\.autocast"):
        module(x)


def kept_by(module, x):
    """Bytes that are kept for backward, without parameters and x."""
    kept, known = [], {one.data_ptr() for one in (x, *module.parameters())}

    def pack(one):
        if one.data_ptr() not in known:
            kept.append(one)
        return one

    with saved_tensors_hooks(pack, lambda one: one):
        module(x)
    return sum(one.numel() * one.element_size() for one in kept)


def test_recomputing_keeps_half_as_much(lt):
    x = torch.randn(12, 16).bfloat16()
    kept = {name: kept_by(layer(name), x) for name in BOTH}
    assert kept == {"cublaslt": 12 * 24 * 2 * 2, "cublaslt_recompute": 12 * 24 * 2}
    assert lt.complaints == []


@pytest.mark.parametrize("name", BOTH)
def test_what_is_made_again_is_gelu_by_tanh(lt, name):
    """At -2.5 the forms are 3 % apart, and W2's gradient is the activation's output."""
    module = layer(name, dtype="float16").requires_grad_(False)
    module.linear1.weight.zero_()
    module.linear1.bias.fill_(-2.5)
    module.linear2.weight.requires_grad_(True)
    y = module(torch.randn(1, 16).half())
    (found,) = torch.autograd.grad(y.sum(), module.linear2.weight)
    wanted = gelu(torch.full_like(found, -2.5), approximate="tanh")
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=0)
    assert lt.complaints == []


def test_relu_keeps_its_output_and_bits(lt):
    x = torch.randn(12, 16).bfloat16()
    assert kept_by(layer("cublaslt", activation="relu", inner=256), x) == 12 * (256 * 2 + 256 // 8)
    # a row's bits are padded to 16 bytes
    assert kept_by(layer("cublaslt", activation="relu", inner=136), x) == 12 * (136 * 2 + 32)
    assert lt.complaints == []


@pytest.mark.parametrize(("activation", "kept"), [("relu", 16), ("gelu_tanh", 24 * 2)])
def test_the_activations_output_is_kept_for_the_last_weight_alone(lt, activation, kept):
    module, x = layer("cublaslt", activation=activation), torch.randn(12, 16).bfloat16()
    assert kept_by(module, x) == 12 * (kept + 24 * 2)
    module.linear2.weight.requires_grad_(False)
    assert kept_by(module, x) == 12 * kept
    given = [x.requires_grad_(), *(one for one in module.parameters() if one.requires_grad)]
    found = torch.autograd.grad(module(x).sum(), given)
    wanted = torch.autograd.grad(exact(module, x).sum(), given)
    torch.testing.assert_close(found, wanted, rtol=0.03, atol=0.03)
    assert lt.complaints == []


@pytest.mark.parametrize("name", BOTH)
def test_nothing_is_kept_without_gradients(lt, name):
    module, x = layer(name).requires_grad_(False), torch.randn(12, 16).bfloat16()
    assert kept_by(module, x) == 0
    with torch.no_grad():
        assert kept_by(layer(name), x) == 0
    assert len(lt.taken) == 4


@pytest.mark.parametrize("name", BOTH)
def test_frozen_parameters_get_no_gradient_and_no_product(lt, name):
    lt.algorithms = [(0, 0)]  # which leaves nothing to time
    module = layer(name).requires_grad_(False)
    x = torch.randn(6, 16).bfloat16().requires_grad_()
    y = module(x)
    forward = len(lt.taken)
    y.sum().backward()
    assert len(lt.taken) - forward == forward  # one for each of the forward ones
    assert x.grad is not None
    assert all(one.grad is None for one in module.parameters())


def test_gradients_come_for_the_last_weight_alone(lt):
    for name in BOTH:
        module = layer(name).requires_grad_(False)
        module.linear2.weight.requires_grad_(True)
        x = torch.randn(6, 16).bfloat16()
        (found,) = torch.autograd.grad(module(x).sum(), module.linear2.weight)
        (wanted,) = torch.autograd.grad(exact(module, x).sum(), module.linear2.weight)
        torch.testing.assert_close(found, wanted, rtol=0.03, atol=0.03)
    assert lt.complaints == []


@pytest.mark.parametrize("name", BOTH)
def test_a_second_derivative_is_an_error(lt, name):
    x = torch.randn(3, 16).bfloat16().requires_grad_()
    (dx,) = torch.autograd.grad(layer(name)(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad((dx + x).sum(), x)
    assert lt.complaints == []


@pytest.mark.parametrize("name", BOTH)
def test_dropout_in_training_is_an_error_that_names_it(lt, name):
    module, x = layer(name), torch.randn(3, 16).bfloat16()
    expected = module(x)
    module.dropout = 0.1
    with pytest.raises(RuntimeError, match=r"dropout=0\.1 in training: this implementation drops nothing"):
        module(x)
    assert torch.equal(module.eval()(x), expected)
    assert lt.complaints == []


@pytest.mark.parametrize("name", BOTH)
def test_inputs_of_another_width_are_torchs_error(lt, name):
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        layer(name)(torch.randn(3, 8).bfloat16())
    assert lt.taken == []


# torch.compile looks at the .grad of what comes out of a graph break, and silences its own warning
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch warns of its own compiler
@pytest.mark.parametrize("name", BOTH)
def test_compiled_around_they_give_the_same(lt, name):
    module, x = layer(name), torch.randn(6, 16).bfloat16().requires_grad_()
    y = torch.compile(lambda x: module(x * 2) + 1, backend="eager")(x)
    expected = module(x * 2) + 1
    torch.testing.assert_close(y, expected)
    actual = torch.autograd.grad(y.float().square().sum(), x)
    torch.testing.assert_close(actual, torch.autograd.grad(expected.float().square().sum(), x))
    assert lt.complaints == []


@pytest.mark.parametrize(
    ("name", "given", "device", "reason"),
    [
        ("cublaslt", {}, CPU, "this device is none"),
        ("cublaslt", {}, T4, "capability 8.0"),
        ("cublaslt", {"dtype": "float32"}, H200, "16-bit elements, not float32"),
        ("cublaslt", {"activation": "gelu"}, H200, "relu and GELU by tanh, not gelu"),
        ("cublaslt", {"activation": "silu"}, H200, "relu and GELU by tanh, not silu"),
        ("cublaslt", {"dropout": 0.1}, H200, "nothing between activation and second product"),
        ("cublaslt", {"hidden": 12}, H200, "multiples of 8"),
        ("cublaslt", {"inner": 20}, H200, "multiples of 8"),
        ("cublaslt_recompute", {"activation": "relu"}, H200, "cannot be made again"),
        ("cublaslt_recompute", {"mode": "inference"}, H200, "makes nothing again in inference"),
        ("cublaslt_recompute", {"dtype": "float64"}, H200, "not float64"),
    ],
)
def test_refusals_say_why(name, given, device, reason):
    sizes = {"rows": 5, "hidden": 16, "inner": 24, "activation": "gelu_tanh", "dtype": "bfloat16"}
    unsupported = implementation(name).unsupported
    assert reason in unsupported(problem_of(**{**sizes, **given}), device)
    assert unsupported(problem_of(**sizes), H200) is None


def test_dropout_is_not_refused_where_nothing_is_dropped():
    given = {"rows": 5, "hidden": 16, "inner": 24, "activation": "relu", "dtype": "bfloat16"}
    problem = problem_of(**given, dropout=0.1, mode="inference")
    assert implementation("cublaslt").unsupported(problem, H200) is None
