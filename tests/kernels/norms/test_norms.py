"""The norms without a GPU: torch's own beside the reference, refusals, counts and problems."""

from __future__ import annotations

import pytest
import torch
from made_devices import CPU, H200, T4
from torch import nn

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, InvalidHyperparameter
from kernel_selector.kernels.norms import launch

OPERATORS = ["layer_norm", "rms_norm", "dropout_add_norm"]
TRITON = [
    (operator, name)
    for operator in OPERATORS
    for name in registry.implementations(operator)
    if name.startswith(("fused", "recompute", "from_output"))
]


def problem_of(operator, **hyperparameters):
    return registry.operator(operator).problem({"rows": 6, "hidden": 40, **hyperparameters})


def test_every_implementation_is_found():
    assert len(TRITON) == 9
    assert all("torch_compile" in registry.implementations(operator) for operator in OPERATORS)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("affine", [True, False])
def test_references_are_torchs_norms(norm, affine):
    given = {"affine": affine, "eps": 1e-3, "dtype": "float64"}
    problem = problem_of(f"{norm}_norm", **given)
    added = problem_of("dropout_add_norm", norm=norm, prenorm=True, **given)
    plain = (nn.LayerNorm if norm == "layer" else nn.RMSNorm)(40, 1e-3, affine, dtype=torch.float64)
    x, residual = torch.randn(2, 3, 6, 40, dtype=torch.float64)
    for parameter in plain.parameters():
        nn.init.normal_(parameter)
    for wanted in (problem, added):
        reference = registry.reference(wanted).double()
        reference.load_state_dict(plain.state_dict())
        y = reference(x) if wanted is problem else reference(x, residual)
        z = x if wanted is problem else x + residual
        torch.testing.assert_close(y if wanted is problem else y[0], plain(z), rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(registry.reference(problem).double(), x[:1, :2].clone().requires_grad_())


@pytest.mark.parametrize(
    ("hyperparameters", "device", "reason"),
    [
        ({}, CPU, "compiles for GPUs"),
        ({}, T4, "compute capability 8.0"),
        ({"dtype": "float64"}, H200, "float64"),
        ({"hidden": 16385}, H200, "registers, which 16385 features exceed"),
        ({"rows": 2**30}, H200, None),
        ({"hidden": 16384}, H200, None),
    ],
)
@pytest.mark.parametrize(("operator", "name"), TRITON)
def test_refusals_say_why(operator, name, hyperparameters, device, reason):
    found = registry.implementation(operator, name).unsupported(
        problem_of(operator, **hyperparameters), device
    )
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize("operator", OPERATORS)
def test_torch_compile_is_refused_where_it_has_no_kernels(operator):
    unsupported = registry.implementation(operator, "torch_compile").unsupported
    assert "C++ compiler" in unsupported(problem_of(operator), CPU)
    old = Device(name="P100", kind="cuda", compute_capability=(6, 0))
    assert "7.0 or later" in unsupported(problem_of(operator), old)
    assert unsupported(problem_of(operator), H200) is None


def test_torchs_names_are_accepted_and_bad_values_are_not():
    found = registry.operator("layer_norm")
    assert found.problem(tokens=6, normalized_shape=40, elementwise_affine=True) == problem_of("layer_norm")
    for given in ({"eps": -1.0}, {"hidden": 0}, {"affine": 1}):
        with pytest.raises(InvalidHyperparameter):
            problem_of("layer_norm", **given)
    for given in ({"dropout": 1.1}, {"norm": "batch"}):
        with pytest.raises(InvalidHyperparameter):
            problem_of("dropout_add_norm", **given)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_torchs_error(share):
    module = registry.implementation("dropout_add_norm", "torch_dropout_add_norm").build(
        problem_of("dropout_add_norm")
    )
    module.dropout = share
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        module(torch.randn(6, 40), torch.randn(6, 40))


def test_masks_count_as_what_they_take():
    saved = {}
    for name, found in registry.implementations("dropout_add_norm").items():
        problem = problem_of("dropout_add_norm", rows=1000, hidden=1024, dtype="bfloat16")
        saved[name] = found.work(problem).saved_bytes / problem["rows"]
    assert saved["fused"] == 2 * 2 * 1024 + 8
    assert saved["fused_bit_mask"] == saved["fused"] + 1024 / 8
    assert saved["torch_dropout_add_norm"] == saved["fused"] + 1024


@pytest.mark.parametrize("shared_bytes", [99 * 1024, 163 * 1024, 227 * 1024])
@pytest.mark.parametrize("element_bytes", [4, 6, 7, 8, 12, 13])
def test_tiles_fit(shared_bytes, element_bytes):
    for exponent in range(4, 15):
        block = 2**exponent
        rows, warps = launch.forward_tile(block)
        assert rows * block == max(1024, block)
        assert 1 <= warps <= 16
        rows, warps, stages, resident = launch.backward_tile(block, element_bytes, shared_bytes)
        assert rows * block <= 32 * 32 * warps
        assert warps * resident <= 32
        # as many tiles as stages would fit, though one less is held
        assert stages == 1 or stages * rows * block * element_bytes * resident < shared_bytes
