"""Translation models, in whose attention choosing is built in already, are rewritten around it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import selector
from selector import nn as drop_in
from selector.models.rewriting.options import rewritable

pytestmark = pytest.mark.usefixtures("stand_ins")


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.LSTM(6, 8, batch_first=True)
        self.decoder = nn.LSTM(6, 8, batch_first=True)
        self.attention = drop_in.AdditiveAttention(8)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, states = self.encoder(source)
        query, _ = self.decoder(target, states)
        context, _ = self.attention(query, memory)
        return context


def test_a_translation_model() -> None:
    torch.manual_seed(0)
    model, inputs = Translator(), (torch.randn(2, 5, 6), torch.randn(2, 4, 6))
    expected = model(*inputs)
    report = selector.optimize(model, inputs, overrides={"lstm": "hoisted"})
    assert {one.path for one in report.replaced} == {"encoder", "decoder"}
    (attention,) = report.left_alone
    assert (attention.problem.operator, attention.problem["target"]) == ("additive_attention", 4)
    assert attention.why == "it chooses by itself already"
    torch.testing.assert_close(model(*inputs), expected)


class Predicting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)
        self.head = drop_in.LinearCrossEntropy(8, 11)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.head(self.layer(x), labels)
        return loss


def test_a_loss_head_of_ours_has_no_logits() -> None:
    model, inputs = Predicting(), (torch.randn(2, 5, 6), torch.zeros(2, 5, dtype=torch.long))
    report = selector.optimize(model, inputs)
    (why,) = {one.why for one in report.left_alone if one.path == "head"}
    assert why == "it chooses by itself already"
    parts = {part.problem.operator: part for part in rewritable(model, inputs).workload(2).parts}
    assert set(parts) == {"linear", "linear_cross_entropy"}
    assert parts["linear"].problem["out_features"] == 8
    assert parts["linear_cross_entropy"].head
