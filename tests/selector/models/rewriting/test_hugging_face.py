"""Hugging Face's BERT, RoBERTa and GPT-2 in tiny configurations."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import selector
from selector.models import layers

transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")

pytestmark = pytest.mark.usefixtures("stand_ins")

OVERRIDES = {
    "attention": "recompute",
    "feed_forward": "recompute_first_linear",
    "dropout_add_norm": "stand_in",
    "layer_norm": "stand_in",
    "gelu": "stand_in",
}
TINY = {"vocab_size": 40, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}


def make(family: str) -> nn.Module:
    torch.manual_seed(0)
    if family == "gpt2":
        config = transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=16)
        return transformers.GPT2LMHeadModel(config)
    name = {"bert": "Bert", "roberta": "Roberta"}[family]
    options = {**TINY, "intermediate_size": 32, "max_position_embeddings": 20}
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}ForMaskedLM")(config)


def batch(*, padded: bool = False) -> dict[str, torch.Tensor]:
    words = torch.randint(3, 40, (2, 8), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(words)
    if padded:
        mask[1, 5:] = 0
    return {"input_ids": words, "attention_mask": mask, "labels": words.clone()}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_a_model_computes_and_trains_as_before(family: str, padded: bool) -> None:
    model = make(family).train()
    original = copy.deepcopy(model)
    keys = list(model.state_dict())
    report = selector.optimize(model, batch(padded=padded), overrides=OVERRIDES)
    replaced = Counter(one.problem.operator for one in report.replaced)
    more = {
        "bert": {"layer_norm": 2, "dropout_add_norm": 4, "gelu": 1},
        "roberta": {"layer_norm": 2, "dropout_add_norm": 4},  # its head calls a function
        "gpt2": {"layer_norm": 5},
    }
    assert replaced == {"attention": 2, "feed_forward": 2, **more[family]}
    assert list(model.state_dict()) == keys
    given = batch(padded=padded)
    for one in (model, original):
        one.eval()
        one(**given).loss.backward()
    torch.testing.assert_close(model(**given).logits, original(**given).logits, rtol=1e-4, atol=1e-5)
    for mine, other in zip(model.parameters(), original.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-5)
    assert selector.restore(model) == len(report.replaced)
    assert [type(one) for one in model.modules()] == [type(one) for one in original.modules()]
    assert model.config._attn_implementation == original.config._attn_implementation == "sdpa"
    torch.testing.assert_close(model(**given).logits, original(**given).logits)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_linear_layer_of_a_head_is_chosen_for_where_its_logits_are_an_output(family: str) -> None:
    model = make(family).train()
    original = copy.deepcopy(model)
    path = {"bert": "cls.predictions.decoder", "gpt2": "lm_head"}[family]
    report = selector.optimize(model, batch(), overrides={path: "column_major"})
    (head,) = [one for one in report.replaced if one.path == path]
    assert (head.problem.operator, head.problem["out_features"]) == ("linear", 40)
    assert any(one.path == path and "logits are an output" in one.why for one in report.left_alone)
    embeddings = model.get_input_embeddings().weight
    assert model.get_submodule(path).weight is embeddings
    for one in (model, original):
        one.eval()
        one(**batch()).loss.backward()
    torch.testing.assert_close(embeddings.grad, original.get_input_embeddings().weight.grad)
    torch.testing.assert_close(model(**batch()).logits, original(**batch()).logits)


def kept_bytes(model: nn.Module) -> int:
    """What a forward pass keeps for backward."""
    seen: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        seen[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = model(**batch())
    assert outputs.loss.requires_grad
    return sum(storage.nbytes() for storage in seen.values())


def test_what_a_model_writes_out_becomes_torchs_own_where_that_is_planned() -> None:
    model = make("gpt2").train()
    original = copy.deepcopy(model)
    problems = [one.problem for one in layers.find(model, batch()) if one.problem.operator == "feed_forward"]
    planned = SimpleNamespace(
        operator="feed_forward",
        hyperparameters=problems[0].as_dict,
        implementation="torch_feed_forward",
        count=len(problems),
    )
    report = selector.optimize(model, batch(), plan=[planned])
    assert [(one.implementation, one.why) for one in report.replaced] == [
        ("torch_feed_forward", "as planned")
    ] * 2
    # torch's GELU keeps its input alone: 16 rows of 64 floats, where theirs keeps four such tensors
    assert kept_bytes(original) - kept_bytes(model) >= 2 * 3 * 16 * 64 * 4
    for one in (model, original):
        one.eval()
    torch.testing.assert_close(model(**batch()).logits, original(**batch()).logits, rtol=1e-4, atol=1e-5)
    without = make("gpt2").train()
    assert selector.optimize(without, batch()).replaced == ()  # of what nothing is known


def test_copies_and_files() -> None:
    model = make("bert").train()
    selector.optimize(model, batch(), overrides={"feed_forward": "recompute_first_linear"})
    expected = model.eval()(**batch()).logits
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(**batch()).logits, expected)
        assert selector.restore(other) == 2


def test_attention_that_is_not_sdpa_is_left_alone() -> None:
    model = make("bert").train()
    model.set_attn_implementation("eager")
    report = selector.optimize(model, batch(), overrides={"attention": "recompute"})
    assert report.replaced == ()
    assert any("the model's attention is 'eager'" in one.why for one in report.left_alone)


def test_layers_of_a_bert() -> None:
    found: dict[str, Any] = {
        layer.path: layer.problem for layer in layers.find(make("bert").train(), batch())
    }
    layer = "bert.encoder.layer.0"
    assert found[layer].operator == "feed_forward"
    assert found[f"{layer}.attention.self"].operator == "attention"
    assert found[f"{layer}.attention.output.LayerNorm"].operator == "dropout_add_norm"
    assert found[f"{layer}.output.LayerNorm"]["dropout"] == 0.1
    assert found["cls.predictions.decoder"].operator == "linear_cross_entropy"
    assert f"{layer}.intermediate.dense" not in found
