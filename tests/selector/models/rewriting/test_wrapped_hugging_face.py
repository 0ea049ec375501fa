"""Parts of Hugging Face's models that were wrapped, replaced or hooked."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import selector
from tests.selector.models.rewriting.test_hugging_face import OVERRIDES, batch, make
from tests.selector.models.rewriting.test_loss_alone import DECODERS, by_name, example
from tests.selector.models.rewriting.test_wrapped_parts import LoRA, OwnDropout, OwnNorm, Wrapped, moved

pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")

pytestmark = pytest.mark.usefixtures("stand_ins")

LAYER = "bert.encoder.layer.0"
CHANGES = {
    "intermediate.dense": LoRA,
    "output.dense": Wrapped,
    "output.LayerNorm": lambda _: OwnNorm(16),
    "attention.output.dropout": lambda _: OwnDropout(),
}


def change(model: Any, path: str, other: Any) -> None:
    parent, _, name = path.rpartition(".")
    at = model.get_submodule(parent)
    setattr(at, name, other(getattr(at, name)).eval())


@pytest.mark.parametrize("when", ["before", "since"])
@pytest.mark.parametrize("part", CHANGES)
def test_a_layer_with_other_parts_computes_what_they_do(part: str, when: str) -> None:
    model, original = make("bert").eval(), make("bert").eval()
    for one in (model, original):
        torch.manual_seed(1)
        if one is model and when == "since":
            selector.optimize(model, batch(), overrides=OVERRIDES)
        torch.manual_seed(1)
        change(one, f"{LAYER}.{part}", CHANGES[part])
    if when == "before":
        report = selector.optimize(model, batch(), overrides=OVERRIDES)
        assert "bert.encoder.layer.1" in {one.path for one in report.replaced}
    moved(model), moved(original)
    torch.testing.assert_close(model(**batch()).logits, original(**batch()).logits)


@pytest.mark.parametrize("part", ["intermediate", "output", "output.dense", "attention.output.LayerNorm"])
def test_hooks_that_came_later_are_called(part: str) -> None:
    model, seen = make("bert"), []
    selector.optimize(model, batch(), overrides=OVERRIDES)
    model.get_submodule(f"{LAYER}.{part}").register_forward_hook(lambda *_: seen.append(part))
    model(**batch())
    assert seen == [part]


@pytest.mark.parametrize("other", [LoRA, Wrapped])
@pytest.mark.parametrize("family", list(DECODERS))
def test_a_head_that_is_another_since_gives_its_own_loss(family: str, other: Any) -> None:
    model = make(family).eval()
    original = copy.deepcopy(model)
    by_name(model)
    assert model(**example()).logits is None
    for one in (model, original):
        torch.manual_seed(1)
        change(one, DECODERS[family], other)
        moved(one)
    torch.testing.assert_close(model(**example()).loss, original(**example()).loss)


def test_hooks_of_a_head_that_came_later_are_called() -> None:
    model, seen = make("bert"), []
    by_name(model)
    model.cls.predictions.register_forward_hook(lambda *_: seen.append(True))
    assert model(**example()).logits is not None
    assert seen == [True]


def test_a_gpt2_with_wrapped_layers_computes_what_they_do() -> None:
    model, original = make("gpt2").eval(), make("gpt2").eval()
    selector.optimize(model, batch(), overrides=OVERRIDES)
    for one in (model, original):
        one.transformer.h[0].mlp.c_fc.register_forward_hook(lambda _module, _args, y: 2 * y)
    torch.testing.assert_close(model(**batch()).logits, original(**batch()).logits)


class Classifier(nn.Module):
    """A model of one's own with one of theirs in it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = make("bert").bert, nn.Linear(16, 3)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.body(input_ids).last_hidden_state[:, 0])
        return y


def test_attention_of_their_model_within_another() -> None:
    model, words = Classifier().eval(), batch()["input_ids"]
    original = copy.deepcopy(model)
    report = selector.optimize(model, words, overrides={"attention": "recompute"})
    attention = [f"body.encoder.layer.{number}.attention.self" for number in (0, 1)]
    assert [one.path for one in report.replaced] == attention
    again = selector.optimize(model, words, overrides={"attention": "recompute"})
    assert {one.path: one.why for one in again.left_alone}[attention[0]] == "it chooses by itself already"
    torch.testing.assert_close(model(words), original(words))
    assert selector.restore(model) == 2
    assert model.body.config._attn_implementation == "sdpa"


def test_a_file_is_read_by_another_process(tmp_path: Path) -> None:
    model = make("bert").eval()
    selector.optimize(model, batch(), overrides={"attention": "recompute"})
    torch.save((model, batch(), model(**batch()).logits), tmp_path / "model")
    code = (
        "import sys, torch; model, batch, expected = torch.load(sys.argv[1], weights_only=False);"
        "torch.testing.assert_close(model(**batch).logits, expected)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "model")]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[4])
