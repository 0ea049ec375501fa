"""Hugging Face's decoders of Llama's form: norms in one operation, and the loss alone."""

from __future__ import annotations

import copy
import importlib
import inspect
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import selector
from kernel_selector.kernels.contract.record import COMPILED
from selector.models.rewriting.decisions import DecidedLayers
from selector.models.rewriting.device_times import LEFT_TO_THE_COMPILER
from selector.models.rewriting.options import optimize_options, search_options
from selector.nn import hugging_face
from selector.nn.hugging_face_losses import CausalDecoder
from selector.nn.hyperparameters import RMS_NORMS

transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")

HEAD, LOSS = "linear_cross_entropy", ("loss",)
SIZES = {
    "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 32, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "attention_dropout": 0.0, "residual_dropout": 0.0,
}  # fmt: skip
USUAL = {"LlamaForCausalLM", "Qwen3ForCausalLM", "GemmaForCausalLM", "Phi3ForCausalLM"}
USUAL_NORMS = {"LlamaRMSNorm", "T5LayerNorm", "Olmo2RMSNorm", "HeliumRMSNorm"}  # of each way to write it


def rarer(*values: str) -> Any:
    """A case that is left to the full suite."""
    return pytest.param(*values, marks=pytest.mark.full)


DECODERS = [
    name if name in USUAL else rarer(name)
    for name, (_, kind) in hugging_face.STANDS_FOR.items()
    if kind is CausalDecoder
]
NORMS = [(family, name) if name in USUAL_NORMS else rarer(family, name) for family, name in RMS_NORMS.items()]


def theirs(name: str, home: str) -> Any:
    try:
        return getattr(importlib.import_module(home), name)
    except (ImportError, AttributeError):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")


def decoder(name: str = "LlamaForCausalLM") -> Any:
    torch.manual_seed(0)
    kind = theirs(name, hugging_face.STANDS_FOR[name][0])
    return kind(kind.config_class(**SIZES)).train()


def example() -> dict[str, Tensor]:
    words = torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(0))
    return {"input_ids": words, "labels": words.masked_fill(torch.arange(9) < 3, -100)}


def by_name(model: Any, **more: str) -> Any:
    return selector.optimize(model, example(), outputs=LOSS, overrides={HEAD: "gathered", **more})


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_trains_as_before_without_logits_or_a_cache(name: str) -> None:
    model = decoder(name)
    original = copy.deepcopy(model)
    report = by_name(model, rms_norm="torch_rms_norm")
    norms = [one for one in model.modules() if type(one).__name__ in RMS_NORMS.values()]
    assert Counter(one.problem.operator for one in report.replaced) == Counter(
        {HEAD: 1, **({"rms_norm": len(norms)} if norms else {})}
    )
    assert inspect.signature(model.forward) == inspect.signature(original.forward)
    ours, before = model(**example()), original(**example())
    assert (type(ours), ours.logits, ours.past_key_values) == (type(before), None, None)
    torch.testing.assert_close(ours.loss, before.loss)
    for one in (ours, before):
        one.loss.backward()
    for mine, other in zip(model.parameters(), original.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-5)
    words = {"input_ids": example()["input_ids"]}
    for one in (model, original):
        one.eval()
    torch.testing.assert_close(model(**words).logits, original(**words).logits, rtol=1e-4, atol=1e-5)
    assert selector.restore(model) == len(report.replaced)
    assert [type(one) for one in model.modules()] == [type(one) for one in original.modules()]


def test_a_cache_is_filled_where_it_is_asked_for_or_given() -> None:
    model = decoder()
    by_name(model)
    given = example()
    assert model(**given, use_cache=True).past_key_values.get_seq_length() == 9
    assert model(input_ids=given["input_ids"]).past_key_values.get_seq_length() == 9
    cache = transformers.DynamicCache(config=model.config)
    model(**given, past_key_values=cache)
    assert cache.get_seq_length() == 9
    assert model(**given, return_dict=False)[0].shape == ()
    hidden = model(**given, output_hidden_states=True).hidden_states
    assert len(hidden) == 3


def test_generating_is_as_before() -> None:
    model = decoder().eval()
    words = example()["input_ids"]
    before = model.generate(words, max_new_tokens=4, do_sample=False)
    by_name(model.train(), rms_norm="torch_rms_norm")
    assert model.eval().generate(words, max_new_tokens=4, do_sample=False).equal(before)


def test_other_losses_and_counts_mean_what_they_meant() -> None:
    model = decoder()
    original = copy.deepcopy(model)
    by_name(model)
    given = example()
    for more in (
        {"num_items_in_batch": 7},
        {"num_items_in_batch": torch.tensor(7)},
        {"shift_labels": given["labels"]},
        {"logits_to_keep": torch.arange(9)},
    ):
        torch.testing.assert_close(model(**given, **more).loss, original(**given, **more).loss)


@pytest.mark.parametrize(("family", "name"), NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_computes_as_before(family: str, name: str, dtype: torch.dtype) -> None:
    kind = theirs(name, f"transformers.models.{family}.modeling_{family}")
    torch.manual_seed(0)
    norm = kind(32).to(dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.rand(32) + 0.5)
    model, x = nn.Sequential(norm), torch.randn(4, 5, 32, dtype=dtype, requires_grad=True)
    upstream = torch.randn(4, 5, 32, dtype=dtype)
    before = model(x)
    wanted = torch.autograd.grad(before, [x, norm.weight], upstream)
    report = selector.optimize(model, x, overrides={"rms_norm": "torch_rms_norm"})
    assert [one.implementation for one in report.replaced] == ["torch_rms_norm"]
    after = model(x)
    assert after.dtype == before.dtype
    loose = {} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(after, before, **loose)
    for mine, other in zip(torch.autograd.grad(after, [x, norm.weight], upstream), wanted, strict=True):
        torch.testing.assert_close(mine, other, **(loose or {"rtol": 1e-4, "atol": 1e-5}))
    assert norm(hidden_states=x).equal(after)


@pytest.mark.parametrize(
    ("x_dtype", "weight_dtype", "autocast"),
    [
        (torch.bfloat16, torch.float32, False),
        (torch.float32, torch.bfloat16, False),
        (torch.float64, torch.float64, False),
        (torch.bfloat16, torch.bfloat16, True),
        (torch.float32, torch.float32, True),
    ],
)
def test_a_norm_gives_the_dtype_that_it_gave(
    x_dtype: torch.dtype, weight_dtype: torch.dtype, autocast: bool
) -> None:
    norm = theirs("LlamaRMSNorm", "transformers.models.llama.modeling_llama")(32).to(weight_dtype)
    model, x = nn.Sequential(norm), torch.randn(4, 32, dtype=x_dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        before = model(x)
    selector.optimize(model, x.to(torch.float32), overrides={"rms_norm": "torch_rms_norm"})
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        after = model(x)
    assert after.dtype == before.dtype
    torch.testing.assert_close(after, before)


def test_gemmas_norm_has_one_more_than_the_weight_and_stays() -> None:
    model = decoder("GemmaForCausalLM")
    report = by_name(model)
    (why,) = {one.why for one in report.left_alone if one.problem.operator == "rms_norm"}
    assert re.search("GemmaRMSNorm computes it in its own code|overrides do not name it", why)


@pytest.mark.parametrize("fastest", [LEFT_TO_THE_COMPILER[0], "aligned"])
def test_a_head_without_logits_is_compiled_whatever_computes_it(
    fastest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits that are an output are stored by every compiler."""
    choose = selector.Selector.choose

    def chosen(self: Any, operator: str, **more: Any) -> Any:
        found = choose(self, operator, **more)
        return replace(found, implementation=fastest, source="model") if operator == HEAD else found

    monkeypatch.setattr(selector.Selector, "choose", chosen)
    options = optimize_options("throughput", None, None, outputs=LOSS, database=None, search=search_options())
    decided = DecidedLayers(decoder(), example(), options).decisions(COMPILED)
    names = {one.layer.problem.operator: one.implementation for one in decided.single}
    assert names[HEAD] == ("torch_linear_cross_entropy" if fastest in LEFT_TO_THE_COMPILER else fastest)
