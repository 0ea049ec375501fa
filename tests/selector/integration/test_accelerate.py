"""Models with replaced layers that Accelerate prepares, and that have its hooks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import selector
from tests.selector.integration.models import EVERY, batch, make, optimized, trained_under

pytestmark = trained_under("accelerate")


def trained(model: Any, precision: str, compiled: bool) -> tuple[Any, Any, list[float]]:
    """Accelerator, prepared model, and losses of two steps of two batches each."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import TorchDynamoPlugin

    torch._dynamo.reset()
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    more = {"dynamo_plugin": TorchDynamoPlugin(backend="aot_eager")} if compiled else {}
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2, **more)
    optimizer, found = torch.optim.SGD(model.parameters(), 0.1), []
    prepared, optimizer = accelerator.prepare(model, optimizer)
    for _ in range(4):
        with accelerator.accumulate(prepared):
            loss = prepared(**batch()).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
    return accelerator, prepared, found


@pytest.mark.parametrize(
    ("family", "precision", "compiled"),
    [("gpt2", "bf16", True), ("bert", "no", False), ("gpt2", "bf16", False)],
)
def test_a_prepared_model_trains_as_before(family: str, precision: str, compiled: bool) -> None:
    *_, expected = trained(make(family).train(), precision, compiled)
    model = optimized(make(family), loss_alone=True)
    accelerator, prepared, found = trained(model, precision, compiled)
    assert found == pytest.approx(expected, rel=1e-4 if precision == "no" else 5e-3)
    for keep in (True, False):  # the context of mixed precision
        plain = accelerator.unwrap_model(prepared, keep_fp32_wrapper=keep, keep_torch_compile=False).eval()
        assert plain is model
        result = plain(**batch())
        assert result.logits is None
        torch.testing.assert_close(copy.deepcopy(plain)(**batch()).loss, result.loss)
    assert selector.restore(model) > 0
    restored = model(**batch())
    torch.testing.assert_close(restored.loss, result.loss, rtol=1e-4, atol=0)
    assert restored.logits is not None


@pytest.mark.parametrize("first", [True, False], ids=["optimized, then hooked", "hooked, then optimized"])
def test_hooks_on_all_parts(first: bool) -> None:
    from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module

    model = make("gpt2").eval()
    expected = model(**batch()).loss
    if first:
        optimized(model).eval()
    for part in model.modules():
        add_hook_to_module(part, ModelHook())
    if not first:
        selector.optimize(model, batch(), overrides=EVERY)
    torch.testing.assert_close(model(**batch()).loss, expected)
    selector.restore(model)
    torch.testing.assert_close(model(**batch()).loss, expected)
    for part in model.modules():
        remove_hook_from_module(part)
    torch.testing.assert_close(model(**batch()).loss, expected)


def test_a_prepared_model_is_optimized() -> None:
    _, prepared, _ = trained(make("gpt2").train(), "bf16", False)
    report = selector.optimize(prepared, batch(), overrides=EVERY)
    assert len(report.replaced) > 4
    assert prepared(**batch()).loss.requires_grad
