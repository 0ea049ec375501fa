"""Layers are found with what one forward pass shows, and the model is left as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from selector import InvalidRequest
from selector.models import layers


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 12, 2, dropout=0.1)
        self.head = nn.Linear(12, 20)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        y, _ = self.lstm(self.embedding(words))
        return cross_entropy(self.head(y).view(-1, 20), labels.view(-1))


class Attending(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return scaled_dot_product_attention(x, x, x, is_causal=True)


def found(model: nn.Module, example_inputs: Any) -> dict[str, list[str]]:
    """Operators by path."""
    paths: dict[str, list[str]] = {}
    for layer in layers.find(model, example_inputs):
        paths.setdefault(layer.path, []).append(layer.problem.operator)
    return paths


def test_a_language_model_is_its_lstm_and_its_loss() -> None:
    words = torch.randint(20, (7, 3))
    labels = words.clone()
    labels[:, 0] = -100
    lstm, head = layers.find(LanguageModel(), (words, labels))
    assert lstm.path == "lstm"
    assert lstm.problem.key == (
        "lstm hidden=12 input=8 batch=3 seq=7 layers=2 bidirectional=false bias=true dropout=0.1 "
        "dtype=float32 mode=training"
    )
    assert head.problem.operator == "linear_cross_entropy"
    assert (head.path, head.problem["rows"], head.problem["labelled"]) == ("head", 21, 0.67)


def test_feed_forward_and_residual_parts_are_found_as_groups() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32), 2, enable_nested_tensor=False)
    paths = found(model, torch.randn(5, 2, 16))
    assert paths == {
        f"layers.{number}{part}": [operator]
        for number in range(2)
        for part, operator in (
            ("", "feed_forward"),
            (".norm1", "dropout_add_norm"),
            (".norm2", "dropout_add_norm"),
            (".self_attn", "attention"),
        )
    }


def test_a_mask_and_a_causal_hint_are_seen() -> None:
    model = nn.MultiheadAttention(16, 2, batch_first=True)
    x, mask = torch.randn(3, 5, 16), torch.zeros(3, 5, dtype=torch.bool)
    (padded,) = layers.find(model, {"query": x, "key": x, "value": x, "key_padding_mask": mask})
    assert padded.problem["mask"] == "padding"
    assert (padded.problem["batch"], padded.problem["seq"], padded.problem["head_dim"]) == (3, 5, 8)
    (causal,) = layers.find(nn.Sequential(Attending()), torch.randn(2, 4, 6, 8))
    assert (causal.path, causal.problem["causal"], causal.problem["heads"]) == ("0", True, 4)


def test_calls_are_counted_and_shapes_kept_apart() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.norm(x))[:1] + self.norm(x[:1])

    model = Twice().eval()
    assert [(layer.problem["rows"], layer.calls) for layer in layers.find(model, torch.randn(3, 4))] == [
        (3, 2),
        (1, 1),
    ]
    assert all(layer.problem["mode"] == "inference" for layer in layers.find(model, torch.randn(3, 4)))


def test_autocast_decides_the_dtype_of_products() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    with torch.autocast("cpu", torch.bfloat16):
        linear, norm = layers.find(model, torch.randn(3, 4))
    assert (linear.problem["dtype"], norm.problem["dtype"]) == ("bfloat16", "bfloat16")


def test_nothing_is_left_behind() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.random.get_rng_state()
    layers.find(model, torch.randn(3, 4))
    state_before_draw = state.clone()
    torch.random.set_rng_state(state)
    torch.randn(3, 4)
    layers.find(model, torch.ones(3, 4))
    after = torch.random.get_rng_state()
    torch.random.set_rng_state(state_before_draw)
    torch.randn(3, 4)
    assert torch.equal(after, torch.random.get_rng_state())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_model_that_raises_is_left_without_hooks() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(RuntimeError):
        layers.find(model, torch.randn(3, 5))
    assert not model[0]._forward_hooks
    assert not model[0]._forward_pre_hooks


def test_a_model_on_the_meta_device_is_described_without_computing() -> None:
    with torch.device("meta"):
        words = torch.zeros(7, 3, dtype=torch.int64)
        lstm, head = layers.find(LanguageModel(), (words, words))
    assert (lstm.problem["seq"], head.problem["vocabulary"]) == (7, 20)


def test_sizes_of_zero_are_no_layer() -> None:
    assert layers.find(nn.Linear(4, 4), torch.randn(0, 4)) == []


def test_inputs_of_another_kind_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="example_inputs of type int: expected a tensor"):
        layers.find(nn.Linear(4, 4), 3)
