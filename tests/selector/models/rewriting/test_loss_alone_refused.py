"""Loss heads that stay as they are, and what `outputs` is refused for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import selector
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from selector import InvalidRequest
from tests.selector.models.rewriting.test_hugging_face import TINY, make
from tests.selector.models.rewriting.test_loss_alone import HEAD, LOSS, by_name, example

transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")


def test_a_loss_that_is_another_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    own = registry.implementation(HEAD, "gathered")

    def build(problem: Problem) -> nn.Module:
        found = own.build(problem)
        found.register_forward_hook(lambda _module, _args, loss: 1.5 * loss)
        return found

    monkeypatch.setitem(registry.implementations(HEAD), "wrong", replace(own, name="wrong", build=build))
    model = make("bert").train()
    report = by_name(model, "wrong")
    (head,) = [one for one in report.left_alone if one.problem.operator == HEAD]
    assert "put back, because the model computed something else: output[0] differs" in head.why
    assert model(**example()).logits is not None


def _hooked(path: str) -> Callable[[Any], None]:
    return lambda model: model.get_submodule(path).register_forward_hook(lambda *_: None)


def _patched(path: str) -> Callable[[Any], None]:
    def patch(model: Any) -> None:
        part = model.get_submodule(path)
        part.forward = part.forward

    return patch


class OwnHead(nn.Linear):
    """May compute something else."""


def _other_decoder(model: Any) -> None:
    decoder = model.cls.predictions.decoder
    model.cls.predictions.decoder = OwnHead(decoder.in_features, decoder.out_features)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_hooked("cls.predictions.decoder"), "Linear in the head has hooks"),
        (_hooked("cls"), "BertOnlyMLMHead in the head has hooks"),
        (_patched("cls.predictions"), "forward of BertLMPredictionHead in the head was replaced"),
        (_patched(""), "the model's forward was replaced"),
        (_other_decoder, "OwnHead in the head is none of its class's own"),
        (lambda model: setattr(model, "loss_function", lambda *_: None), "loss_function was replaced"),
    ],
)
def test_heads_that_differ_from_what_their_class_made_are_left_alone(
    change: Callable[[Any], None], words: str
) -> None:
    model = make("bert").train()
    change(model)
    report = by_name(model)
    (head,) = [one for one in report.left_alone if one.problem.operator == HEAD]
    assert words in head.why
    assert model(**example()).logits is not None


class OwnBert(transformers.BertForMaskedLM):  # type: ignore[misc, name-defined]
    """May compute something else."""


def classifier(labels: int) -> Any:
    config = transformers.BertConfig(
        **TINY, intermediate_size=32, max_position_embeddings=20, num_labels=labels
    )
    return transformers.BertForSequenceClassification(config).train()


def test_models_of_other_classes_are_left_alone_with_the_reason() -> None:
    ids = {"input_ids": example()["input_ids"]}
    report = selector.optimize(classifier(3), {**ids, "labels": torch.tensor([0, 2])}, outputs=LOSS)
    (head,) = [one for one in report.left_alone if one.problem.operator == HEAD]
    assert "of which BertForSequenceClassification is none" in head.why
    report = selector.optimize(classifier(1), {**ids, "labels": torch.tensor([0.5, 1.5])}, outputs=LOSS)
    assert any("no linear layer with its cross-entropy was found" in note for note in report.notes)
    own = OwnBert(make("bert").config).train()
    report = by_name(own)
    (head,) = [one for one in report.left_alone if one.problem.operator == HEAD]
    assert "OwnBert is a subclass of BertForMaskedLM" in head.why


@pytest.mark.parametrize("outputs", ["loss", (), ("logits",), ("loss", "logits"), 5, {"loss"}])
def test_other_outputs_are_refused(outputs: Any) -> None:
    for limit in (None, "1GiB"):
        with pytest.raises(InvalidRequest, match=r"outputs=.*expected \('loss',\)"):
            selector.optimize(make("bert"), example(), outputs=outputs, memory_limit=limit)


def test_a_loss_that_the_model_does_not_give_is_refused() -> None:
    unlabelled = {"input_ids": example()["input_ids"]}
    with pytest.raises(InvalidRequest, match="BertForMaskedLM gives logits and no more"):
        selector.optimize(make("bert"), unlabelled, outputs=LOSS)
    with pytest.raises(InvalidRequest, match="gives a tuple without names"):
        selector.optimize(make("bert"), {**example(), "return_dict": False}, outputs=LOSS)
    with pytest.raises(InvalidRequest, match="Linear gives a Tensor without names"):
        selector.optimize(nn.Linear(3, 2), torch.zeros(1, 3), outputs=LOSS)
    with pytest.raises(TypeError, match="unexpected keyword argument 'output'"):
        selector.optimize(make("bert"), example(), output=LOSS)  # type: ignore[call-arg]
