"""Outputs: which may be changed in place, in what dtype they are under autocast, and losses of no rows."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import selector.nn as snn
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device
from selector import UnsupportedProblem

pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections"),
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"),
]
CPU = Device(name="a processor", kind="cpu", multiprocessors=2, memory_bytes=8 * 2**30)
KINDS: dict[str, tuple[str, tuple[Any, ...], tuple[tuple[int, ...], ...]]] = {
    "LSTM": ("lstm", (5, 6), ((7, 4, 5),)),
    "GRU": ("gru", (5, 6), ((7, 4, 5),)),
    "RNN": ("rnn", (5, 6), ((7, 4, 5),)),
    "Linear": ("linear", (5, 6), ((4, 5),)),
    "LayerNorm": ("layer_norm", (5,), ((4, 5),)),
    "RMSNorm": ("rms_norm", (5,), ((4, 5),)),
    "GELU": ("gelu", (), ((4, 5),)),
    "ReLU": ("relu", (), ((4, 5),)),
    "SiLU": ("silu", (), ((4, 5),)),
    "MultiheadAttention": ("attention", (8, 2), ((3, 2, 8),) * 3),
}


def implementations(operator: str) -> list[str]:
    found = registry.operator(operator)
    example = {**found.examples[0], "dtype": "float32", "mode": "training"}
    for name in ("peepholes", "dropout", "activation", "residual"):
        example.pop(name, None)
    problem = found.problem(example)
    return [
        name
        for name in registry.implementations(operator)
        if registry.implementation(operator, name).unsupported(problem, CPU) is None
    ]


CASES = [(kind, name) for kind, (operator, *_) in KINDS.items() for name in implementations(operator)]
CASES = [one for one in CASES if not one[1].startswith("sdpa")]  # these give no weights


def tensors(outputs: Any) -> list[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    return [one for part in outputs if part is not None for one in tensors(part)]


def gradients_after(module: nn.Module, given: list[Tensor], place: int) -> list[Tensor] | None:
    """Of the outputs' squares, one of them changed in place; None where that is an error."""
    outputs = tensors(module(*given))
    try:
        outputs[place].mul_(0.5).add_(1)
        loss = torch.stack([one.square().sum() for one in outputs]).sum()
        return list(torch.autograd.grad(loss, [*given, *module.parameters()]))
    except RuntimeError:
        return None


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_what_may_be_changed_in_place_after_torchs_may_be_changed_after_ours(kind: str, name: str) -> None:
    _, arguments, shapes = KINDS[kind]
    for dtype in (torch.float64, *([torch.float32] if kind == "LSTM" else [])):
        more: dict[str, Any] = {} if kind in ("GELU", "ReLU", "SiLU") else {"dtype": dtype}
        theirs = getattr(nn, kind)(*arguments, **more)
        ours = getattr(snn, kind)(*arguments, **more, implementation=name)
        ours.load_state_dict(theirs.state_dict())
        given = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
        for place in range(len(tensors(theirs(*given)))):
            expected = gradients_after(theirs, given, place)
            if expected is not None:
                torch.testing.assert_close(
                    gradients_after(ours, given, place), expected, rtol=1e-4, atol=1e-5
                )


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_dtypes_under_autocast_are_torchs(kind: str, name: str) -> None:
    _, arguments, shapes = KINDS[kind]
    forms: list[dict[str, Any]] = [{}, {"proj_size": 3}] if kind == "LSTM" else [{}]
    for form, dtype, training in itertools.product(
        forms, (torch.float32, torch.bfloat16, torch.float64), (True, False)
    ):
        more = dict(form)
        if dtype == torch.float64 and kind not in ("GELU", "ReLU", "SiLU"):
            more["dtype"] = dtype
        theirs = getattr(nn, kind)(*arguments, **more)
        given = [torch.randn(shape).to(dtype) for shape in shapes]
        with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(training):
            try:
                expected = [one.dtype for one in tensors(theirs(*given))]
            except RuntimeError:  # of torch's, where oneDNN has no LSTM in bfloat16
                continue
            ours = getattr(snn, kind)(*arguments, **more, implementation=name)
            try:
                found = [one.dtype for one in tensors(ours(*given))]
            except UnsupportedProblem:  # of loops too inexact in 16 bits
                continue
            assert found == expected, (form, dtype, training)


@pytest.mark.parametrize("kind", ["GRU", "RNN", "LSTM"])
def test_dtypes_of_states_under_autocast_are_torchs(kind: str) -> None:
    theirs, ours = getattr(nn, kind)(5, 6), getattr(snn, kind)(5, 6, implementation="hoisted")
    for x_dtype, dtype in itertools.product((torch.float32, torch.bfloat16), repeat=2):
        x, h = torch.randn(7, 4, 5).to(x_dtype), torch.zeros(1, 4, 6, dtype=dtype)
        hx = (h, h) if kind == "LSTM" else h
        with torch.autocast("cpu", torch.bfloat16):
            try:
                expected = tensors(theirs(x, hx))
            except RuntimeError:  # as above
                continue
            found = tensors(ours(x, hx))
        assert [one.dtype for one in found] == [one.dtype for one in expected]


@pytest.mark.parametrize("name", implementations("linear_cross_entropy"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loss_of_no_rows_or_of_no_labels_is_torchs(name: str, dtype: torch.dtype) -> None:
    for rows, labels in ((0, torch.zeros(0, dtype=torch.int64)), (2, torch.full((2,), -100))):
        head = snn.LinearCrossEntropy(5, 7, dtype=dtype, implementation=name)
        x = torch.randn(rows, 5, dtype=dtype, requires_grad=True)
        results = []
        for loss in (
            cross_entropy(nn.functional.linear(x, head.weight, head.bias), labels),
            head(x, labels),
        ):
            results.append([loss, *torch.autograd.grad(loss, [x, head.weight, head.bias])])
        torch.testing.assert_close(results[1], results[0], equal_nan=True)
