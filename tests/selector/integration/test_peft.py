"""LoRA by PEFT, added before layers are replaced and after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import selector
from selector import nn as drop_in
from selector.models.rewriting import compilation
from tests.selector.integration.models import batch, make, optimized, same, step, trained_under

pytestmark = trained_under("peft")


NAMED = {
    "linear": "column_major",
    "attention": "recompute",
    "layer": {"feed_forward": "recompute_activation"},
}
TARGETS = {
    "gpt2": ["c_attn", "c_fc"],
    "bert": ["query", "value", "dense"],
    "llama": ["q_proj", "v_proj", "up_proj"],
}


def with_lora(model: nn.Module, targets: list[str], **more: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    found = get_peft_model(model, LoraConfig(r=2, target_modules=targets, **more))
    torch.manual_seed(1)
    for name, one in found.named_parameters():
        if "lora_" in name:
            nn.init.normal_(one, std=0.2)
    return found


def pair(family: str, when: str) -> tuple[Any, Any]:
    """A model with LoRA and other layers, and the same with its own."""
    more = {"fan_in_fan_out": family == "gpt2"}
    theirs = with_lora(make(family).train(), TARGETS[family], **more)
    loss_alone = family != "llama"
    if when == "before":
        model = optimized(with_lora(make(family), TARGETS[family], **more), loss_alone=loss_alone)
    else:
        model = with_lora(optimized(make(family), loss_alone=loss_alone), TARGETS[family], **more)
    return model.train(), theirs


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("family", TARGETS)
def test_a_model_trains_merges_and_is_saved_as_before(family: str, when: str, tmp_path: Path) -> None:
    from peft import PeftModel

    model, theirs = pair(family, when)
    assert list(model.state_dict()) == list(theirs.state_dict())
    expected = step(theirs)
    same(step(model), expected)
    torch._dynamo.reset()
    same(torch.compile(model, backend="aot_eager")(**batch()).loss, expected[0])
    model.eval(), theirs.eval()
    with model.disable_adapter(), theirs.disable_adapter():
        same(model(**batch()).loss, theirs(**batch()).loss)
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(make(family), tmp_path).eval()
    same(loaded(**batch()).loss, expected[0])
    model.merge_adapter()
    same(model(**batch()).loss, expected[0])
    model.unmerge_adapter()
    selector.restore(model)
    same(model(**batch()).loss, expected[0])
    same(model.merge_and_unload()(**batch()).loss, expected[0])


def test_what_was_compiled_before_lora_was_added_is_undone_with_it() -> None:
    torch._dynamo.reset()
    model = optimized(make("gpt2"))
    code = compilation.CompiledCode()
    compilation.compile_in_place(model, backend="aot_eager")
    compilation.keep(model, code)
    model(**batch())
    whole = with_lora(model, TARGETS["gpt2"], fan_in_fan_out=True)
    same(step(whole), step(with_lora(make("gpt2").train(), TARGETS["gpt2"], fan_in_fan_out=True)))
    selector.restore(whole)
    assert model._compiled_call_impl is None


@pytest.mark.parametrize("targets", [["linear"], ["attention"], ["linear1", "linear2"]])
def test_drop_in_modules(targets: list[str]) -> None:
    found = []
    for home, named in ((nn, {}), (drop_in, NAMED)):

        def of(name: str, named: Any = named) -> dict[str, Any]:
            return {"implementation": named[name]} if named else {}

        model = nn.Sequential()
        model.linear = home.Linear(6, 8, **of("linear"))
        model.attention = home.MultiheadAttention(8, 2, **of("attention"))
        model.layer = home.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **of("layer"))
        torch.manual_seed(2)
        for one in model.parameters():
            nn.init.normal_(one, std=0.3)
        whole = with_lora(model, targets)
        y = model.linear(torch.ones(3, 2, 6))
        y = model.layer(y + model.attention(y, y, y, need_weights=False)[0])
        trained = [one for one in whole.parameters() if one.requires_grad]
        found.append([y, *torch.autograd.grad(y.square().sum(), trained)])
    same(found[1], found[0])
