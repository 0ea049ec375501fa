"""Hugging Face's models of which the loss alone is used: what they give, and what stays."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import selector
from selector.models import layers
from selector.models.rewriting.options import rewritable
from tests.selector.models.rewriting.test_hugging_face import batch, make

transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")

DECODERS = {"bert": "cls.predictions.decoder", "roberta": "lm_head.decoder", "gpt2": "lm_head"}
FAMILIES = pytest.mark.parametrize("family", list(DECODERS))
LOSS = ("loss",)
HEAD = "linear_cross_entropy"


def example() -> dict[str, Tensor]:
    """A batch of which a third has labels."""
    given = batch(padded=True)
    hidden = torch.rand(given["labels"].shape, generator=torch.Generator().manual_seed(1)) < 0.67
    return {**given, "labels": given["labels"].masked_fill(hidden, -100)}


def by_name(model: nn.Module, name: str = "gathered", **more: Any) -> Any:
    return selector.optimize(model, example(), outputs=LOSS, overrides={HEAD: name}, **more)


def pair(family: str) -> tuple[Any, Any]:
    """A model with its loss alone, and the original; nothing is dropped."""
    model = make(family).train()
    original = copy.deepcopy(model)
    by_name(model)
    return model.eval(), original.eval()


@FAMILIES
def test_a_model_trains_as_before_and_gives_no_logits(family: str) -> None:
    model = make(family).train()
    original, keys = copy.deepcopy(model), list(model.state_dict())
    report = by_name(model)
    (head,) = [one for one in report.replaced if one.problem.operator == HEAD]
    assert (head.path, head.implementation) == (DECODERS[family], "gathered")
    assert not any("logits" in one.why for one in report.left_alone)
    assert "loss and gradients agree" in str(report)
    assert list(model.state_dict()) == keys
    assert model.get_submodule(DECODERS[family]).weight is model.get_input_embeddings().weight
    assert inspect.signature(model.forward) == inspect.signature(original.forward)
    for one in (model, original):
        one.eval()
    ours, theirs = model(**example()), original(**example())
    assert (type(ours), ours.logits, ours.loss.dtype) == (type(theirs), None, theirs.loss.dtype)
    torch.testing.assert_close(ours.loss, theirs.loss)
    for one in (ours, theirs):
        one.loss.backward()
    for mine, other in zip(model.parameters(), original.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-6)
    unlabelled = {name: one for name, one in example().items() if name != "labels"}
    torch.testing.assert_close(model(**unlabelled).logits, original(**unlabelled).logits)
    assert selector.restore(model) == len(report.replaced)
    assert [type(one) for one in model.modules()] == [type(one) for one in original.modules()]
    torch.testing.assert_close(model(**example()).logits, original(**example()).logits)


@FAMILIES
def test_arguments_mean_what_they_meant(family: str) -> None:
    model, original = pair(family)
    given = example()
    (loss, *rest) = model(**given, return_dict=False, output_hidden_states=True)
    torch.testing.assert_close(loss, original(**given).loss)
    assert len(rest[-1]) == 3  # hidden states, of the embeddings and both layers
    model.config.return_dict = False
    assert type(model(**given)) is tuple
    model.config.return_dict = True
    names = list(inspect.signature(original.forward).parameters)
    placed = [given.get(name) for name in names[: names.index("labels") + 1]]
    torch.testing.assert_close(model(*placed).loss, loss)
    for wrong in ({"labels": given["labels"]}, {"input_ids": given["input_ids"]}):
        with pytest.raises(TypeError, match="multiple values"):
            model(*placed, **wrong)


def test_gpt2_averages_over_as_many_items_as_it_is_told() -> None:
    model, original = pair("gpt2")
    given = example()
    none = {**given, "labels": torch.full_like(given["labels"], -100)}
    for count in (7, torch.tensor(7)):
        ours, theirs = (one(**given, num_items_in_batch=count).loss for one in (model, original))
        torch.testing.assert_close(ours, theirs)
    ours, theirs = (one(**none, num_items_in_batch=7).loss for one in (model, original))
    torch.testing.assert_close(ours, theirs)
    ours.backward()
    assert all(not one.grad.any() for one in model.parameters() if one.grad is not None)


@pytest.mark.parametrize(
    "more", [{"shift_labels": True}, {"ignore_index": 0}, {"logits_to_keep": torch.arange(8)}]
)
def test_gpt2s_own_forward_takes_what_changes_the_loss(more: dict[str, Any]) -> None:
    model, original = pair("gpt2")
    given = example()
    if "shift_labels" in more:
        more = {"shift_labels": given["labels"]}
    if "ignore_index" in more:
        given["labels"] = given["labels"].clamp(0)
    ours, theirs = model(**given, **more), original(**given, **more)
    torch.testing.assert_close((ours.loss, ours.logits), (theirs.loss, theirs.logits))
    model.loss_function = lambda logits, *_, **__: logits.sum()
    ours = model(**example())
    torch.testing.assert_close(ours.loss, ours.logits.sum())


@FAMILIES
@pytest.mark.parametrize("autocast", [False, True])
def test_the_loss_has_the_dtype_that_it_had(family: str, autocast: bool) -> None:
    model, original = pair(family)
    for one in (model, original):
        one.to(torch.float32 if autocast else torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        ours, theirs = model(**example()).loss, original(**example()).loss
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=0)
    ours.backward()
    weights = model.get_input_embeddings().weight
    assert weights.grad.dtype == weights.dtype


def test_errors_are_torchs() -> None:
    model, original = pair("bert")
    given = example()
    wrong = (
        ({"labels": given["labels"].clamp(0) + 40}, IndexError),
        ({"labels": given["labels"].int()}, RuntimeError),
        ({"labels": given["labels"][:1]}, ValueError),
    )
    for change, kind in wrong:
        for one in (model, original):
            with pytest.raises(kind):
                one(**{**given, **change})


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_give_the_loss_alone(copied: Callable[[Any], Any]) -> None:
    model, original = pair("gpt2")
    other = copied(model)
    found = other(**example())
    assert found.logits is None
    torch.testing.assert_close(found.loss, original(**example()).loss)
    assert other._selections["loss"].names == ["gathered"]
    assert selector.restore(other) == 1


def test_it_is_saved_and_generates_as_theirs(tmp_path: Path) -> None:
    model, original = pair("gpt2")
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(loaded) is type(original)
    torch.testing.assert_close(loaded(**example()).logits, original(**example()).logits)
    words = example()["input_ids"]
    made = [one.generate(words, max_new_tokens=3, do_sample=False) for one in (model, original)]
    torch.testing.assert_close(*made)


def test_new_embeddings_are_those_of_the_loss() -> None:
    model, original = pair("bert")
    for one in (model, original):
        torch.manual_seed(0)
        one.resize_token_embeddings(50, mean_resizing=False)
    torch.testing.assert_close(model(**example()).loss, original(**example()).loss)


# bert's head is roberta's
@pytest.mark.parametrize("family", ["bert", pytest.param("roberta", marks=pytest.mark.full), "gpt2"])
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute"
)  # torch.compile's, at each graph break with gradients
def test_torch_compile_and_transforms_see_the_model(family: str) -> None:
    model, original = pair(family)
    expected = original(**example()).loss
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(**example()).loss, expected)
    weights = {name: one.detach() for name, one in model.named_parameters()}

    def loss(weights: dict[str, Tensor]) -> Tensor:
        found: Tensor = torch.func.functional_call(model, weights, kwargs=example()).loss
        return found

    torch.testing.assert_close(torch.func.grad_and_value(loss)(weights)[1], expected)


def test_the_head_is_listed_once_and_by_itself_chosen() -> None:
    model = make("gpt2").train()
    before = [(one.path, one.problem) for one in layers.find(model, example())]
    by_name(model)
    assert sorted((one.path, one.problem) for one in layers.find(model, example())) == sorted(before)
    for outputs in (None, LOSS):
        report = selector.optimize(model, example(), outputs=outputs)
        (head,) = [one for one in report.left_alone if one.problem.operator == HEAD]
        assert "it chooses by itself already" in head.why
    assert model(**example()).logits is None


def planned(name: str) -> list[Any]:
    model = make("gpt2").train()
    (problem,) = [one.problem for one in layers.find(model, example()) if one.problem.operator == HEAD]
    return [SimpleNamespace(operator=HEAD, hyperparameters=problem.as_dict, implementation=name, count=1)]


def test_torchs_own_functions_are_built_where_they_are_planned_or_named() -> None:
    for wish in ({"plan": planned("torch_linear_cross_entropy")}, {"overrides": {"lm_head": "chunked"}}):
        model = make("gpt2").train()
        report = selector.optimize(model, example(), outputs=LOSS, **wish)
        (head,) = report.replaced
        assert (head.path, model(**example()).logits) == ("lm_head", None)
    unknown = make("gpt2").train()
    report = selector.optimize(unknown, example(), outputs=LOSS)
    assert report.replaced == ()
    assert unknown(**example()).logits is not None


@pytest.mark.usefixtures("here", "sqlite_database")
def test_a_plan_counts_no_logits_that_are_not_used() -> None:
    model = make("bert").train()
    for outputs in (None, LOSS):
        workload = rewritable(model, example(), outputs).workload(2)
        heads = [part for part in workload.parts if part.head]
        assert (len(heads), workload.loss_bytes == 0) == ((0, False) if outputs is None else (1, True))
    (head,) = heads
    assert head.replaceable
    assert head.problem["labelled"] == pytest.approx(
        float((example()["labels"] != -100).float().mean()), abs=0.01
    )
    model.cls.predictions.decoder.register_forward_hook(lambda *_: None)
    assert not any(part.head for part in rewritable(model, example(), LOSS).workload(2).parts)


def test_a_memory_limit_decides_for_the_head() -> None:
    model = make("bert").train()
    report = selector.optimize(model, example(), outputs=LOSS, memory_limit="4GiB")
    (head,) = [one for one in (*report.replaced, *report.left_alone) if one.problem.operator == HEAD]
    assert head.why == "as planned"
