"""Dropout and other calls of feed-forward layers than the gate's, in Triton's interpreter on a CPU.

Arguments are implementations; standard input is a JSON list of problems, whose activation and dtype count.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings

import interpreted  # sets the interpreter up
import pytest
import torch

from kernel_selector.kernels import registry

OPERATOR = registry.operator("feed_forward")


def masked(module, x, mask):
    """The layer with a given dropout factor in torch's operations, in float64: y and all gradients."""
    weights = [one.detach().double().requires_grad_() for one in module.parameters()]
    w1, b1, w2, b2 = weights
    x = x.detach().double().requires_grad_()
    plain = registry.reference(OPERATOR.problem(rows=1, hidden=1, inner=1, activation=module.activation))
    y = plain.act(x @ w1.T + b1).mul(mask) @ w2.T + b2
    return y, torch.autograd.grad(y.square().sum(), (x, *weights))


def dropout(module, x):
    """Both passes use one mask, which the kernel tells when it is fed with ones."""
    from kernel_selector.kernels.operators.feed_forward._activation import BOTH, Middle, threshold_of
    from kernel_selector.kernels.operators.feed_forward._triton import launch as _triton
    from kernel_selector.kernels.runtime.dropout import draw_seed

    module.dropout = 0.3
    torch.manual_seed(5)
    y = module(x)
    found = torch.autograd.grad(y.float().square().sum(), (x, *module.parameters()))
    torch.manual_seed(5)
    middle = Middle("relu", BOTH, threshold_of(0.3), draw_seed(x.device))
    mask, _ = _triton.forward(torch.ones(len(x), module.linear1.out_features), middle)
    dropped = (mask == 0).double().mean().item()
    assert abs(dropped - 0.3) < 0.03, dropped
    assert abs((mask == 0).double().mean(0) - 0.3).max() < 0.5
    assert mask.max().item() == torch.tensor(middle.scale).item()
    expected_y, expected = masked(module, x, mask)
    for got, wanted in zip((y, *found), (expected_y, *expected), strict=True):
        error = (got.double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
        assert error < 2e-2, error
    for share, level in ((1.0, module.linear2.bias.expand_as(y)), (0.0, None)):
        module.dropout = share
        got = module(x)
        assert level is None or torch.equal(got, level)
        (dx,) = torch.autograd.grad(got.float().sum(), x)
        assert dx.isfinite().all()
        assert share < 1 or not dx.any()


def other_calls(module, plain, dtype):
    """Empty, one row, strided; NaN stays in its row; frozen parts; nothing is changed in place."""
    module.dropout = 0.0
    hidden = module.linear1.in_features
    for shape in ((0, hidden), (hidden,), (2, 3, hidden)):
        x = torch.randn(shape).to(dtype).requires_grad_()
        got, expected = module(x), plain(x)
        torch.testing.assert_close(got, expected, rtol=3e-2, atol=3e-2)
        torch.autograd.grad(got.float().sum(), (x, *module.parameters()))
    x = torch.randn(4, hidden).to(dtype)
    x[2, 1] = float("nan")
    x.requires_grad_()
    y = module(x)
    assert y.isnan().any(1).tolist() == [False, False, True, False]
    (dx,), (expected,) = (torch.autograd.grad(one.float().sum(), x) for one in (y, plain(x)))
    assert torch.equal(dx.isnan(), expected.isnan())
    module.requires_grad_(False)
    module.linear1.bias.requires_grad_(True)
    x = torch.randn(5, hidden).to(dtype)
    before = x.clone()
    (db,) = torch.autograd.grad(module(x).float().sum(), module.linear1.bias)
    assert db.isfinite().all()
    assert torch.equal(x, before)


def autocast_and_second_derivative(module, plain):
    """float32 parameters under autocast get float32 gradients, and those cannot be differentiated again."""
    module.float().requires_grad_(True)
    plain.float()
    results = []
    for one in (module, plain):
        x = torch.linspace(-1, 1, 5 * module.linear1.in_features).view(5, -1).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = one(x)
        assert y.dtype == torch.bfloat16
        results.append(torch.autograd.grad(y.float().square().sum(), (x, *one.parameters())))
    torch.testing.assert_close(*results, rtol=5e-2, atol=5e-2)
    x = x.detach().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        (dx,) = torch.autograd.grad(module(x).float().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(dx.sum(), x)


def main() -> None:
    interpreted.round_to_nearest()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, of NaN that is meant
    for given in json.load(sys.stdin):
        problem = OPERATOR.problem(given)
        for name in sys.argv[1:]:
            file = importlib.import_module(f"kernel_selector.kernels.operators.feed_forward.{name}")
            module = file.build(problem)
            inputs = OPERATOR.make_inputs(problem, "cpu", 0)
            module.load_state_dict(dict(inputs.state_dict))
            plain = registry.implementation("feed_forward", "torch_feed_forward").build(problem)
            plain.load_state_dict(module.state_dict())
            dropout(module, inputs.args[0].requires_grad_())
            other_calls(module, plain, getattr(torch, problem["dtype"]))
            autocast_and_second_derivative(module, plain)
            print(json.dumps([problem.key, name]), flush=True)


if __name__ == "__main__":
    main()
