"""Calls of the Triton norms that the gate does not make, in Triton's interpreter.

Run as a program, because the interpreter is chosen when kernels are imported. Its argument is the name of
a function of this file; it fails by raising.
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings

import interpreted  # chooses the interpreter
import pytest
import torch

from kernel_selector.kernels import registry
from kernel_selector.kernels.gate import Gate
from kernel_selector.kernels.norms import added, fused

NORMS = [
    (norm, name) for norm in ("layer_norm", "rms_norm") for name in ("fused", "recompute", "from_output")
]
ADDED = ("fused", "fused_bit_mask")


def module_of(operator, name, **hyperparameters):
    """A built module and torch's own with the same random parameters."""
    found = registry.operator(operator)
    problem = found.problem({"rows": 6, "hidden": 40, **hyperparameters})
    names = (name, found.default)
    pair = [
        importlib.import_module(f"kernel_selector.kernels.operators.{operator}.{one}").build(problem)
        for one in names
    ]
    for module in pair:
        module.load_state_dict(found.make_inputs(problem, "cpu", 5).state_dict)
    return pair


def gradients(module, *given, weights=None):
    """Output and gradients of arguments and parameters."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in given]
    y = module(*leaves)
    upstream = torch.linspace(-1, 2, y.numel()).view_as(y) if weights is None else weights
    return [y, *torch.autograd.grad(y, [*leaves, *module.parameters()], upstream)]


def same(actual, expected, **tolerance):
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, **{"rtol": 1e-4, "atol": 1e-5, **tolerance})


def weights_near_zero() -> None:
    """Some, all or tiny weights, and large biases: every choice of what is kept gives torch's gradients."""
    for operator, name in NORMS:
        for change in ("some", "all", "tiny", "bias"):
            ours, plain = module_of(operator, name)
            for module in (ours, plain):
                with torch.no_grad():
                    if change == "some":
                        module.weight[3:7] = 0
                    elif change == "all":
                        module.weight.zero_()
                    elif change == "tiny":
                        module.weight[5] = 1e-38
                    elif operator == "layer_norm":
                        module.bias[2] = 1e4
            x = torch.randn(6, 40)
            same(gradients(ours, x), gradients(plain, x))


def what_is_kept() -> None:
    """from_output keeps y; x where a weight is zero, and again y when the weight has changed."""
    for operator in ("layer_norm", "rms_norm"):
        ours, _ = module_of(operator, "from_output")
        x = torch.randn(6, 40, requires_grad=True)
        for value, expected in ((1.0, "y"), (0.0, "x"), (2.0, "y")):
            with torch.no_grad():
                ours.weight[0] = value
            kept = []
            with torch.autograd.graph.saved_tensors_hooks(lambda t, to=kept: to.append(t) or t, lambda t: t):
                y = ours(x)
            places = {tensor.data_ptr() for tensor in kept}
            assert (y.data_ptr() in places) == (expected == "y")
            assert (x.data_ptr() in places) == (expected == "x")
        y = ours(x)
        ours.weight.data[0] = 0.0  # autograd does not count this
        (dx,) = torch.autograd.grad(y.sum(), x)
        assert dx.isnan().all()


def bad_input() -> None:
    """Infinities, no rows, one feature, large half-precision numbers, other shapes and dtypes."""
    warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, about the infinities
    for operator, name in NORMS:
        ours, plain = module_of(operator, name)
        x = torch.randn(6, 40)
        x[2, 5], x[4, 1] = float("inf"), float("nan")
        y, expected = ours(x), plain(x)
        same([y[[0, 1, 3, 5]]], [expected[[0, 1, 3, 5]]])
        assert torch.equal(y.isfinite(), expected.isfinite())
        empty = gradients(ours, torch.randn(2, 0, 40))
        same(empty, gradients(plain, torch.randn(2, 0, 40)))
        with pytest.raises(RuntimeError) as torchs:
            plain(torch.randn(2, 41))
        fails(RuntimeError, str(torchs.value), ours, torch.randn(2, 41))
        fails(TypeError, "float64", ours, torch.randn(2, 40).double())
        large, torchs = (module.half() for module in module_of(operator, name))
        x = 3000 * torch.randn(6, 40).half()
        same([large(x)], [torchs(x.float().half())], rtol=1e-2, atol=1e-2)
        one, torchs = module_of(operator, name, hidden=1)
        x = torch.randn(5, 1)
        same([one(x)], [torchs(x)])


def fails(kind, words, call, *arguments) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        call(*arguments)


def other_calls() -> None:
    """Frozen parameters, expanded gradients, two passes, torch.compile, autocast, many tiles."""
    warnings.simplefilter("ignore", UserWarning)  # torch.compile's, at each graph break with gradients
    for operator, name in NORMS:
        ours, plain = module_of(operator, name)
        x = torch.randn(2, 3, 40)
        expanded = torch.ones(1, 1, 1).expand(2, 3, 40)
        same(gradients(ours, x, weights=expanded), gradients(plain, x, weights=expanded))
        for module in (ours, plain):
            module.weight.requires_grad_(False)
        leaf = x.clone().requires_grad_()
        found = [torch.autograd.grad(module(leaf).square().sum(), leaf)[0] for module in (ours, plain)]
        same(*([one] for one in found))
        for module in (ours, plain):
            module.weight.requires_grad_(True)
        y = ours(x)
        first = torch.autograd.grad(y.sum(), ours.weight, retain_graph=True)
        assert torch.equal(*first, *torch.autograd.grad(y.sum(), ours.weight))
        (dx,) = torch.autograd.grad(ours(leaf).square().sum(), leaf, create_graph=True)
        fails(RuntimeError, "once_differentiable", dx.sum().backward)
        with torch.autocast("cpu", torch.bfloat16):
            assert ours(x.bfloat16()).dtype == plain(x.bfloat16()).dtype
        with torch.no_grad():
            assert ours(x).grad_fn is None
        compiled = torch.compile(lambda x, module=ours: 2 * module(x), backend="eager")
        same([compiled(leaf)], [2 * plain(leaf)])
    ours, plain = module_of("layer_norm", "fused", hidden=4)
    x = torch.randn(300, 4)
    same(gradients(ours, x), gradients(plain, x), atol=2e-2)


def dropout_is_replayed() -> None:
    """Backward drops what forward dropped; seeds repeat; shares of 0 and 1, and none that is not one."""
    masks = {}
    for name in ADDED:
        ours, _ = module_of("dropout_add_norm", name, rows=64, hidden=100, dropout=0.3, prenorm=True)
        x = torch.rand(64, 100).add_(0.5).requires_grad_()
        zero = torch.zeros(64, 100, requires_grad=True)
        torch.manual_seed(3)
        y, z = ours(x, zero)
        dx, d_residual = torch.autograd.grad((y * torch.randn(64, 100)).sum() + z.sum(), (x, zero))
        keep = masks[name] = z != 0
        torch.testing.assert_close(z[keep], x[keep] / 0.7)
        assert torch.equal(dx != 0, keep)
        torch.testing.assert_close(dx[keep], d_residual[keep] / 0.7)
        assert abs(keep.float().mean() - 0.7) < 4 * (0.21 / 6400) ** 0.5
        for shift in (1, 2, 4):  # no word serves two columns, and no row is another's copy
            assert abs((keep[:, shift:] == keep[:, :-shift]).float().mean() - 0.58) < 0.04
            assert abs((keep[shift:] == keep[:-shift]).float().mean() - 0.58) < 0.04
        assert not torch.equal(ours(x, zero)[1] != 0, keep)
        torch.manual_seed(3)
        assert torch.equal(ours(x, zero)[1], z)
        with torch.no_grad():
            torch.manual_seed(3)
            assert torch.equal(ours(x, zero)[0], y)
        ours.dropout = 1.0
        y, z = ours(x, zero + 1)
        assert torch.equal(z, torch.ones_like(z))
        assert not torch.autograd.grad(z.sum() + y.sum(), x)[0].any()
        for share in (-0.1, 1.5, float("nan")):
            ours.dropout = share
            fails(ValueError, "dropout probability has to be between 0 and 1", ours, x, zero)
    assert torch.equal(*masks.values())


def added_calls() -> None:
    """One output used, eval mode, a residual of another dtype or shape, no rows, and torch's errors."""
    for name in ADDED:
        for norm in ("layer", "rms"):
            ours, plain = module_of("dropout_add_norm", name, norm=norm, prenorm=True, mode="inference")
            x, residual = torch.randn(6, 40), torch.randn(6, 40)
            for wanted in (0, 1):
                results = []
                for module in (ours, plain):
                    leaves = [tensor.clone().requires_grad_() for tensor in (x, residual)]
                    results.append(torch.autograd.grad(module(*leaves)[wanted].square().sum(), leaves))
                same(*results)
            wide = residual.clone().requires_grad_(), x.bfloat16().requires_grad_()
            y, z = ours(wide[1], wide[0])
            assert (y.dtype, z.dtype) == (torch.float32, torch.float32)
            same([z], [residual + wide[1].float()])
            found = torch.autograd.grad(y.square().sum(), wide)
            assert [one.dtype for one in found] == [torch.float32, torch.bfloat16]
            same(ours(x, residual[:1]), plain(x, residual[:1]))
            assert ours(x[:0], residual[:0])[0].shape == (0, 40)
            fails(RuntimeError, "normalized_shape", ours, x[:, :9], residual[:, :9])


def second_derivatives() -> None:
    """Refused in words whatever is frozen, absent or saved: nothing is left out of a sum."""
    cases = [
        ("dropout_add_norm", name, prenorm) for name in (*ADDED, "from_output") for prenorm in (False, True)
    ]
    for operator, name, prenorm in [*cases, *((*one, None) for one in NORMS)]:
        for affine, frozen in ((True, True), (False, False)):
            more = {} if prenorm is None else {"prenorm": prenorm, "dropout": 0.0}
            module, _ = module_of(operator, name, affine=affine, rows=1, hidden=8, **more)
            module.requires_grad_(not frozen)
            for wanted in range(1 if prenorm is None else 2):
                given = [torch.randn(1, 8) for _ in range(1 if prenorm is None else 2)]
                given[wanted].requires_grad_()
                y = module(*given)
                loss = (y[0] if prenorm else y).sum()  # whose upstream gradient is a constant
                (gradient,) = torch.autograd.grad(loss, given[wanted], create_graph=True)
                fails(RuntimeError, "no second derivative", (loss + gradient.square().sum()).backward)


def faults_are_found() -> None:
    """The gate refuses a gradient without its mean, and dropped elements that differ between the passes."""
    problem = registry.operator("layer_norm").problem(rows=9, hidden=33)
    build = importlib.import_module("kernel_selector.kernels.operators.layer_norm.fused").build
    assert Gate(problem, "cpu").check(build(problem)).passed
    right = fused.backward
    try:
        fused.backward = lambda form, dy, dz, kept, out: right(
            form._replace(rms=True), dy, dz, kept._replace(mean=None), out
        )
        result = Gate(problem, "cpu").check(build(problem))
        assert not result.passed, result
        assert "gradient of" in result.detail
    finally:
        fused.backward = right
    added.draw_seed = lambda device: torch.full((1,), 7, dtype=torch.int64, device=device)
    ours, _ = module_of("dropout_add_norm", "fused", prenorm=True, dropout=0.5)
    x, zero = torch.ones(6, 40, requires_grad=True), torch.zeros(6, 40)
    _, z = ours(x, zero)
    right = added.backward
    added.backward = lambda *given: right(*given[:-1], given[-1]._replace(seed=given[-1].seed + 1))
    (dx,) = torch.autograd.grad(z.sum(), x)
    assert not torch.equal(dx != 0, z != 0)


def main() -> None:
    interpreted.round_to_nearest()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
