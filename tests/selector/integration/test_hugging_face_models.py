"""Hugging Face's models with other layers: generating, checkpointing, compiled, saved as a whole."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch

import selector
from selector.models.rewriting import compilation
from tests.selector.integration.models import batch, make, optimized, same, step

pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")

pytestmark = [
    pytest.mark.usefixtures("stand_ins"),
    # of torch.compile, where it traces an autograd.Function
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]


def generated(model: Any, **how: Any) -> torch.Tensor:
    words = torch.tensor([[5, 6, 7], [8, 9, 3]])
    mask = torch.ones_like(words)
    found: torch.Tensor = model.eval().generate(
        words, attention_mask=mask, max_new_tokens=5, do_sample=False, pad_token_id=0, **how
    )
    return found


@pytest.mark.parametrize("family", ["gpt2", pytest.param("llama", marks=pytest.mark.full)])
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_model_generates_as_before(family: str, compiled: bool) -> None:
    model = optimized(make(family))
    if compiled:
        torch._dynamo.reset()
        compilation.compile_in_place(model, backend="aot_eager")
    assert torch.equal(generated(model), generated(make(family)))
    assert torch.equal(generated(model, num_beams=2), generated(make(family), num_beams=2))


@pytest.mark.parametrize(
    ("family", "backend"),
    [
        ("gpt2", None),
        pytest.param("bert", "eager", marks=pytest.mark.full),
        pytest.param("gpt2", "aot_eager", marks=pytest.mark.full),
    ],
)
def test_layers_are_run_a_second_time_for_their_gradients(family: str, backend: str | None) -> None:
    """Gradient checkpointing, also within a compiled model."""
    expected = step(make(family).train())
    model = optimized(make(family), loss_alone=True)
    model.activation_checkpointing_enable()
    if backend is not None:
        torch._dynamo.reset()
        compilation.compile_in_place(model, backend=backend)
    same(step(model), expected)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch()).loss
    torch.testing.assert_close(loss.float(), expected[0], rtol=2e-2, atol=0)


def test_a_model_is_copied_and_saved_as_a_whole() -> None:
    model = optimized(make("gpt2"), loss_alone=True)
    assert list(model.state_dict()) == list(make("gpt2").state_dict())
    expected, file = step(model), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        same(step(other), expected)
        selector.restore(other)
        same(step(other), expected)
    fresh = make("gpt2")
    fresh.load_state_dict(model.state_dict())
    same(step(fresh.train()), expected)
