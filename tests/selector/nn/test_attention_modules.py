"""Attention, transformer layers and the loss head, beside torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from selector import InvalidRequest
from selector import nn as drop_in


def assert_alike(ours: nn.Module, theirs: nn.Module, given: tuple[Tensor, ...], **call: Any) -> None:
    """Outputs and gradients are the same."""
    found = []
    for module in (ours, theirs):
        leaves = [one.clone().requires_grad_() for one in given]
        outputs = module(*leaves, **call)
        every = [one for one in (outputs if isinstance(outputs, tuple) else (outputs,)) if one is not None]
        loss = sum((one.square().sum() for one in every), torch.zeros(()))
        wanted = [*leaves, *module.parameters()]
        found.append([*every, *torch.autograd.grad(loss, wanted, allow_unused=True)])
    for mine, other in zip(*found, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def attention(implementation: str, **options: Any) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(12, 3, **options)
    ours = drop_in.MultiheadAttention(12, 3, implementation=implementation, **options)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


pytestmark = pytest.mark.usefixtures("stand_ins")

PADDING = torch.tensor([[False] * 5, [False, False, False, True, True]])
CAUSAL = torch.ones(4, 5, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("implementation", ["recompute", "tempo"])
@pytest.mark.parametrize(
    "call",
    [
        {},
        {"need_weights": False},
        {"average_attn_weights": False},
        {"key_padding_mask": PADDING},
        {"attn_mask": CAUSAL},
        {"attn_mask": CAUSAL, "key_padding_mask": PADDING, "need_weights": False},
        {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False},
    ],
)
def test_multihead_attention(implementation: str, call: dict[str, Any]) -> None:
    for options in ({"batch_first": True}, {"bias": False}):
        ours, theirs = attention(implementation, **options)
        shapes = ((2, 4, 12), (2, 5, 12)) if "batch_first" in options else ((4, 2, 12), (5, 2, 12))
        query, key = (torch.randn(shape) for shape in shapes)
        assert_alike(ours, theirs, (query, key, torch.randn_like(key)), **call)
        assert ours.choices[-1].implementation == implementation


def test_self_attention_with_sizes_of_its_own_for_keys() -> None:
    ours, theirs = attention("recompute", kdim=7, vdim=9, batch_first=True)
    assert_alike(ours, theirs, (torch.randn(2, 4, 12), torch.randn(2, 5, 7), torch.randn(2, 5, 9)))
    ours, theirs = attention("recompute", batch_first=True)
    x = torch.randn(2, 4, 12)
    torch.testing.assert_close(ours(x, x, x)[0], theirs(x, x, x)[0])


def test_what_multihead_attention_leaves_to_torch() -> None:
    ours, theirs = attention("recompute", add_zero_attn=True)
    assert_alike(ours, theirs, (torch.randn(4, 2, 12),) * 3)
    ours, theirs = attention("recompute")
    assert_alike(ours, theirs, (torch.randn(4, 12),) * 3)
    additive = torch.zeros(4, 4).masked_fill(CAUSAL[:, :4], -1.0)
    assert_alike(ours, theirs, (torch.randn(4, 2, 12),) * 3, attn_mask=additive)
    assert ours.choices == []


def test_scaled_dot_product_attention() -> None:
    ours = drop_in.ScaledDotProductAttention(implementation="recompute")
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    expected = scaled_dot_product_attention(q, k, v, scale=0.5, enable_gqa=True)
    torch.testing.assert_close(ours(q, k, v, scale=0.5), expected)
    mask = torch.rand(5, 6) < 0.7
    mask[:, 0] = True
    expected = scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    torch.testing.assert_close(ours(q, k, v, mask), expected)
    additive = torch.randn(5, 6)
    expected = scaled_dot_product_attention(q, k, v, additive, enable_gqa=True)
    torch.testing.assert_close(ours(q, k, v, additive), expected)
    assert len(ours.choices) == 2


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_layers(norm_first: bool, activation: str) -> None:
    options = {"norm_first": norm_first, "activation": activation, "dropout": 0.0, "batch_first": True}
    named = {"feed_forward": "recompute_first_linear", "norm1": "stand_in", "norm2": "stand_in"}
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(12, 3, 16, **options)
    ours = drop_in.TransformerEncoderLayer(12, 3, 16, implementation=named, **options)
    ours.load_state_dict(theirs.state_dict())
    x, memory = torch.randn(2, 5, 12), torch.randn(2, 4, 12)
    assert_alike(ours, theirs, (x,), src_key_padding_mask=PADDING)
    assert "feed_forward=recompute_first_linear, norm1=stand_in" in repr(ours)
    decoder = nn.TransformerDecoderLayer(12, 3, 16, **options)
    own_decoder = drop_in.TransformerDecoderLayer(12, 3, 16, implementation=named, **options)
    own_decoder.load_state_dict(decoder.state_dict())
    assert_alike(own_decoder, decoder, (x, memory), memory_key_padding_mask=PADDING[:, :4])


def test_a_transformer_layer_is_named_by_its_operators() -> None:
    with pytest.raises(InvalidRequest, match="expected names by feed_forward, norm1, norm2"):
        drop_in.TransformerEncoderLayer(12, 3, implementation="fused")


def test_linear_cross_entropy() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(6, 11)
    ours = drop_in.LinearCrossEntropy(6, 11, implementation="chunked", label_smoothing=0.1)
    ours.load_state_dict(linear.state_dict())
    x, labels = torch.randn(3, 4, 6), torch.randint(11, (3, 4))
    labels[0] = -100
    expected = cross_entropy(linear(x).view(-1, 11), labels.view(-1), label_smoothing=0.1)
    torch.testing.assert_close(ours(x, labels), expected)
    assert ours.choices[0].problem["labelled"] == 0.67
    with pytest.raises(IndexError):
        ours(x, labels + 11)


@pytest.mark.parametrize("score", ["additive", "general", "dot"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_additive_attention(score: str, batch_first: bool) -> None:
    torch.manual_seed(0)
    module = drop_in.AdditiveAttention(6, score=score, batch_first=batch_first)
    query, memory = torch.randn(2, 3, 6), torch.randn(2, 5, 6)
    lengths = torch.tensor([5, 2])
    given = (query, memory) if batch_first else (query.transpose(0, 1), memory.transpose(0, 1))
    context, weights = module(*given, lengths)
    seen = context if batch_first else context.transpose(0, 1)
    torch.testing.assert_close(seen, weights @ memory)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))
    assert bool((weights[1, :, 2:] == 0).all())
    if score == "additive":
        other = drop_in.AdditiveAttention(6, batch_first=batch_first, implementation="recompute")
        other.load_state_dict(module.state_dict())
        torch.testing.assert_close(other(*given, lengths)[0], context)
        assert other.choices[0].implementation == "recompute"


def test_additive_attention_refuses_other_shapes() -> None:
    with pytest.raises(ValueError, match="expected three dimensions"):
        drop_in.AdditiveAttention(6)(torch.randn(3, 6), torch.randn(2, 5, 6))


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("name", ["written_out", "recompute", "torch_sdpa", None])
def test_a_query_that_sees_no_key_has_nothing_where_torchs_has_nan(
    name: str | None, need_weights: bool
) -> None:
    kind = drop_in.MultiheadAttention if name else nn.MultiheadAttention
    module = kind(8, 2, batch_first=True, **({"implementation": name} if name else {}))
    given, masked = torch.randn(2, 3, 8, requires_grad=True), torch.tensor([[True] * 3, [False] * 3])
    found = module(given, given, given, key_padding_mask=masked, need_weights=need_weights)[0][0]
    if name in (None, "torch_sdpa") and need_weights:
        assert found.isnan().all()
    else:
        assert not found.any()
