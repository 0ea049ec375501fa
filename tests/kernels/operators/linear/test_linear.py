"""What modules of `linear` and `batched_matmul` owe beyond the conformance tests, on a processor."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.nn.functional import gelu, linear, silu

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import InvalidHyperparameter
from kernel_selector.kernels.devices import known_device

LAYOUTS = ["torch_linear", "column_major", "padded"]
PRODUCTS = ["torch_bmm", "split", "column_major"]


def layer(name, **given):
    problem = registry.operator("linear").problem({"rows": 6, "in_features": 7, "out_features": 5, **given})
    return registry.implementation("linear", name).build(problem)


def product(name, **given):
    problem = registry.operator("batched_matmul").problem({"batch": 3, "rows": 4, "inner": 5, **given})
    return registry.implementation("batched_matmul", name).build(problem)


def test_the_reference_is_torchs_layer():
    for activation, torchs in (
        ("none", lambda z: z),
        ("relu", torch.relu),
        ("gelu", gelu),
        ("gelu_tanh", lambda z: gelu(z, approximate="tanh")),
        ("silu", silu),
    ):
        problem = registry.operator("linear").problem(
            rows=6, in_features=7, out_features=5, activation=activation, residual=True
        )
        inputs = registry.operator("linear").make_inputs(problem, "cpu", 0)
        reference = registry.reference(problem).double()
        reference.load_state_dict(inputs.state_dict)
        x, r = (tensor.double() for tensor in inputs.args)
        expected = torchs(linear(x, *(tensor.double() for tensor in inputs.state_dict.values()))) + r
        torch.testing.assert_close(reference(x, r), expected, rtol=1e-12, atol=1e-12)


def test_the_batched_reference_is_torchs_product():
    for transposed in (False, True):
        problem = registry.operator("batched_matmul").problem(
            batch=3, rows=4, inner=5, columns=6, transposed=transposed
        )
        a, b = registry.operator("batched_matmul").make_inputs(problem, "cpu", 0).args
        expected = torch.bmm(a.double(), (b.transpose(1, 2) if transposed else b).double())
        torch.testing.assert_close(registry.reference(problem)(a.double(), b.double()), expected)


@pytest.mark.parametrize("name", LAYOUTS)
def test_gradients_are_exact_in_float64(name):
    module = layer(name, activation="gelu", residual=True, dtype="float64")
    x, r = torch.randn(2, 7, dtype=torch.float64), torch.randn(2, 5, dtype=torch.float64)
    assert gradcheck(module, (x.requires_grad_(), r.requires_grad_()))


@pytest.mark.parametrize("name", LAYOUTS)
def test_any_leading_axes_and_none(name):
    module = layer(name)
    for shape in ((7,), (3, 7), (2, 3, 7), (0, 7), (2, 0, 7)):
        x = torch.randn(shape)
        y = module(x)
        torch.testing.assert_close(y, linear(x, module.weight, module.bias))
        assert y.is_contiguous()


@pytest.mark.parametrize("name", LAYOUTS)
def test_errors_are_torchs(name):
    module = layer(name)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        module(torch.randn(2, 8))
    with pytest.raises(RuntimeError, match="dtype"):
        module(torch.randn(2, 7).double())
    with pytest.raises(TypeError, match="without a residual"):
        module(torch.randn(2, 7), torch.randn(2, 5))
    module.dropout = 1.5
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        module(torch.randn(2, 7))


@pytest.mark.parametrize("name", LAYOUTS)
def test_autocast_gives_the_narrow_dtype(name):
    module = layer(name, activation="gelu")
    x = torch.randn(3, 7, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), gelu(linear(x, module.weight, module.bias)), rtol=0.05, atol=0.05)
    y.float().sum().backward()
    assert x.grad.dtype == module.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("name", LAYOUTS)
def test_dropout_leaves_out_its_share_and_scales_the_rest(name):
    module = layer(name, dropout=0.25)
    x = torch.randn(400, 7)
    whole = linear(x, module.weight, module.bias)
    torch.manual_seed(1)
    y = module(x)
    kept = y != 0
    assert 0.7 < kept.float().mean() < 0.8
    torch.testing.assert_close(y, torch.where(kept, whole / 0.75, 0))
    torch.manual_seed(1)
    assert torch.equal(module(x), y)
    torch.testing.assert_close(module.eval()(x), whole)
    module.train().dropout = 1.0
    assert not module(x).any()


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_explained(name):
    sizes = {"rows": 64, "in_features": 1023, "out_features": 4096}
    device = known_device("h200")
    for mode, products in (("training", 3), ("inference", 1)):
        problem = registry.operator("linear").problem(**sizes, mode=mode)
        lines = registry.implementation("linear", name).describe(problem, device).splitlines()
        assert len(lines) == products + 1
        assert "rows" in lines[0]
        assert "cuBLAS's own choice; " in lines[-1]


def test_frozen_parameters_and_inputs_get_no_gradient():
    module = layer("column_major")
    module.weight.requires_grad_(False)
    x = torch.randn(3, 7)
    module(x).sum().backward()
    assert module.weight.grad is None
    assert x.grad is None
    torch.testing.assert_close(module.bias.grad, torch.full((5,), 3.0))


def test_modules_print_what_they_do():
    text = repr(layer("torch_linear", activation="gelu", residual=True, dropout=0.1))
    assert "in_features=7, out_features=5, bias=True, activation=gelu, dropout=0.1, residual=True" in text
    assert isinstance(layer("padded"), nn.Linear)


@pytest.mark.parametrize("name", PRODUCTS)
def test_batched_products_are_torchs(name):
    a, b = torch.randn(3, 4, 5, dtype=torch.float64), torch.randn(3, 6, 5, dtype=torch.float64)
    module = product(name, columns=6, transposed=True)
    assert gradcheck(module, (a.requires_grad_(), b.requires_grad_()))
    assert product(name)(torch.randn(3, 0, 5), torch.randn(3, 5, 2)).shape == (3, 0, 2)
    with pytest.raises(RuntimeError, match="Expected size for first two dimensions of batch2 tensor"):
        product(name)(torch.randn(3, 4, 5), torch.randn(3, 4, 5))
    with torch.autocast("cpu", torch.bfloat16):
        assert product(name)(torch.randn(3, 4, 5), torch.randn(3, 5, 2)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"rows": 0, "in_features": 3}, "rows=0"),
        ({"rows": 3, "in_features": 3, "activation": "swoosh"}, "activation='swoosh'"),
        ({"rows": 3, "in_features": 3, "dropout": 1.5}, "dropout=1.5"),
        ({"rows": 3}, "needs in_features"),
    ],
)
def test_what_is_no_problem_is_refused(given, reason):
    with pytest.raises(InvalidHyperparameter, match=reason):
        registry.operator("linear").problem(given)


def test_implied_hyperparameters_leave_keys_short():
    operator = registry.operator("linear")
    plain = operator.problem(rows=64, in_features=1024, out_features=4096, activation="identity")
    assert (
        plain.key == "linear rows=64 in_features=1024 out_features=4096 bias=true dtype=float32 mode=training"
    )
    assert operator.problem(tokens=64, in_features=1024)["out_features"] == 1024


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch warns of its own compiler
def test_compiled_around_they_give_the_same():
    module, x = layer("column_major", activation="gelu"), torch.randn(6, 7, requires_grad=True)
    y = torch.compile(lambda x: module(x) * 2, backend="aot_eager")(x)
    torch.testing.assert_close(y, module(x) * 2)
    actual = torch.autograd.grad(y.square().sum(), x)
    torch.testing.assert_close(actual, torch.autograd.grad((module(x) * 2).square().sum(), x))
