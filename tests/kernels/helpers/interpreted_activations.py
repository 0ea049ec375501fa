"""Other calls of activations than the gate's, in Triton's interpreter on a CPU.

Arguments are implementations; standard input is a JSON list of problems, each with its `operator`. Each is
compared with torch's module: infinities, NaN, zeros, empty and non-contiguous tensors, two backward passes,
a second derivative. With `--wrong-fit` the gate judges one whose fit has a wrong sign instead.
"""

from __future__ import annotations

import importlib
import json
import math
import sys

import interpreted  # sets the interpreter up
import numpy as np
import pytest
import torch

from kernel_selector.kernels import registry
from kernel_selector.kernels.activations import triton_functions
from kernel_selector.kernels.contract import Device
from kernel_selector.kernels.gate import Gate

H200 = Device(name="NVIDIA H200", kind="cuda", compute_capability=(9, 0))
SPECIAL = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1e4, -1e4, -0.7517, -0.7518, 88.0, -90.0]


def results_of(given, *modules, upstream=None):
    """(y, dx) of each module for one x."""
    results = []
    for module in modules:
        x = given.detach().requires_grad_()
        y = module(x)
        y.backward(torch.ones_like(y) if upstream is None else upstream)
        results.append((y.detach(), x.grad))
    return results


def special_values(module, plain, dtype, *, finite_slope):
    """Infinities and NaN come out as torch's in float64; a fit may say 1 where torch's formula gives NaN."""
    given = torch.tensor(SPECIAL, dtype=dtype)
    ((y, dx),) = results_of(given, module)
    ((expected_y, expected_dx),) = results_of(given.double(), plain)
    if finite_slope:
        assert dx[0] == 1
        expected_dx[0] = 1
    for got, expected in ((y, expected_y), (dx, expected_dx)):
        torch.testing.assert_close(got.double(), expected, equal_nan=True, rtol=2e-2, atol=2e-2)


def other_calls(module, plain, dtype):
    for shape in ((0,), (3, 0), (), (5, 7)):
        for got, expected in zip(*results_of(torch.randn(shape).to(dtype), module, plain), strict=True):
            torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    wide = torch.randn(6, 20, dtype=torch.float32).to(dtype)
    for given in (wide.t(), wide[:, ::2], wide[1:, 3:9], wide[:1].expand(4, 20)):
        upstream = torch.randn(given.shape[::-1]).to(dtype).t()
        (y, dx), (expected_y, expected_dx) = results_of(given, module, plain, upstream=upstream)
        assert y.stride() == expected_y.stride()
        torch.testing.assert_close((y, dx), (expected_y, expected_dx), rtol=2e-2, atol=2e-2)
    shifted = wide.view(-1)[1:]  # dense, and begins where no 16 bytes do
    ((y, dx),), ((expected_y, expected_dx),) = (results_of(x, module) for x in (shifted, shifted.clone()))
    assert torch.equal(y, expected_y)
    assert torch.equal(dx, expected_dx)
    for smooth in (module(wide.requires_grad_()).float().square(), module(wide).float()):
        (first,) = torch.autograd.grad(smooth.sum(), wide, retain_graph=True)
        (second,) = torch.autograd.grad(smooth.sum(), wide, create_graph=True)
        assert torch.equal(first, second)
        if not second.requires_grad:  # of relu and a linear loss: the second derivative is zero
            assert isinstance(plain, torch.nn.ReLU)
            continue
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.autograd.grad((second + wide).float().sum(), wide)


def wrong_fit():
    """The last term of each rising polynomial with the wrong sign."""
    for name in ("GELU", "GELU_TANH", "SILU"):
        *rest, last = getattr(triton_functions, name).value
        setattr(triton_functions, name, triton_functions.tl.constexpr((*rest, -last)))


def main() -> None:
    interpreted.round_to_nearest()
    torch.set_num_threads(1)
    torch.manual_seed(0)  # near the least y its rounding hides the slope: other draws can be 4 % beyond
    np.seterr(all="ignore")  # infinities are meant
    names = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    if "--wrong-fit" in sys.argv:
        wrong_fit()
    for given in json.load(sys.stdin):
        operator = given.pop("operator")
        problem = registry.operator(operator).problem(given)
        for name in names:
            if registry.implementation(operator, name).unsupported(problem, H200):
                continue
            module = importlib.import_module(f"kernel_selector.kernels.operators.{operator}.{name}").build(
                problem
            )
            if "--wrong-fit" in sys.argv:
                result = Gate(problem, "cpu").check(module)
                print(json.dumps([problem.key, name, result.passed, result.detail]))
                continue
            plain = registry.implementation(operator, f"torch_{operator}").build(problem)
            dtype = getattr(torch, problem["dtype"])
            finite = name == "from_output" and operator != "relu"
            special_values(module, plain, dtype, finite_slope=finite)
            other_calls(module, plain, dtype)
            print(json.dumps([problem.key, name, True, ""]))


if __name__ == "__main__":
    main()
