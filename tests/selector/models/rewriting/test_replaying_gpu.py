"""CUDA graphs of Hugging Face's layers on a GPU: losses and gradients are those without them."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import selector

transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

SIZES = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 128}
WORDS = 100


def bert(dropout: float) -> Any:
    torch.manual_seed(0)
    shares = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = transformers.BertConfig(vocab_size=WORDS, attn_implementation="sdpa", **SIZES, **shares)
    return transformers.BertForMaskedLM(config).cuda().train()


def gpt2(dropout: float) -> Any:
    torch.manual_seed(0)
    shares = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=64, n_layer=3, n_head=2, n_positions=64, use_cache=False, **shares
    )
    return transformers.GPT2LMHeadModel(config).cuda().train()


def words(seed: int, batch: int = 4) -> dict[str, Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    ids = torch.randint(WORDS, (batch, 32), device="cuda", generator=generator)
    return {"input_ids": ids, "labels": ids.clone()}


def trained(model: nn.Module, steps: int = 6, accumulate: int = 2) -> list[Tensor]:
    """Losses, then gradients of an unfinished accumulation."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1)
    losses = []
    for number in range(steps + 1):
        loss = model(**words(number)).loss
        loss.backward()
        losses.append(loss.detach())
        if number % accumulate == 1:
            optimizer.step()
            optimizer.zero_grad()
    return [*losses, *(one.grad for one in model.parameters() if one.grad is not None)]


@pytest.mark.parametrize("make", [bert, gpt2])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_theirs_train_as_without_graphs(make: Any, dropout: float) -> None:
    model = make(dropout)
    plain = copy.deepcopy(model)
    (stack,) = selector.replay(model, words(0))
    assert (stack.blocks, stack.refused) == (3, None)
    for found, expected in zip(trained(model), trained(plain), strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-4)
    assert "replayed=21 of 21 calls" in repr(model)


@pytest.mark.parametrize("make", [bert, gpt2])
def test_what_is_optimized_is_replayed_too(make: Any) -> None:
    model = make(0.0).bfloat16()
    plain = copy.deepcopy(model)
    names = {"dropout_add_norm": "fused", "feed_forward": "torch_compile", "layer_norm": "fused"}
    selector.optimize(model, words(0), objective="device_time", overrides=names)
    (stack,) = selector.replay(model, words(0))
    assert stack.refused is None
    for found, expected in zip(trained(model)[:7], trained(plain)[:7], strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    assert "replayed=21 of 21 calls" in repr(model)
    other = words(9, batch=2)
    expected = plain(**other).loss
    torch.testing.assert_close(model(**other).loss, expected, rtol=5e-2, atol=5e-2)
    assert selector.restore(model) > 3


@pytest.mark.filterwarnings("ignore")  # of torch's compiler about this machine
def test_a_model_compiled_with_reduced_overhead_beside_them_changes_nothing() -> None:
    model, other = bert(0.0), nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda()
    plain = copy.deepcopy(model)
    (stack,) = selector.replay(model, words(0))
    assert stack.refused is None
    compiled = torch.compile(other, mode="reduce-overhead")
    for _ in range(4):  # which frees the workspaces of cuBLAS
        other.zero_grad()
        compiled(torch.randn(8, 64, device="cuda")).sum().backward()
    torch.cuda.empty_cache()
    for found, expected in zip(trained(model), trained(plain), strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-4)
    assert "replayed=21 of 21 calls" in repr(model)


def test_under_autocast() -> None:
    model = bert(0.0)
    plain = copy.deepcopy(model)
    with torch.autocast("cuda", torch.bfloat16):
        (stack,) = selector.replay(model, words(0))
        assert stack.refused is None
        found, expected = trained(model), trained(plain)
    for one, other in zip(found[:7], expected[:7], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
    assert "replayed=21 of 21 calls" in repr(model)


def test_memory_is_about_as_without() -> None:
    peaks = []
    for replayed in (False, True):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        model, given = bert(0.1), words(0, batch=1024)
        if replayed:
            selector.replay(model, given)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            model.zero_grad()
            model(**given).loss.backward()
        peaks.append(torch.cuda.max_memory_reserved() - before)
        del model
    assert peaks[1] < 1.5 * peaks[0], peaks


class Waiting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.dropout(self.linear(x), 0.5)
        return y if y.sum().item() else -y


def test_a_block_that_waits_for_the_gpu_is_refused_and_random_numbers_go_on() -> None:
    model, x = nn.Sequential(Waiting(), Waiting()).cuda().train(), torch.ones(4, 8, device="cuda")
    torch.manual_seed(3)
    expected = torch.rand(3, device="cuda")
    torch.manual_seed(3)
    (stack,) = selector.replay(model, x)
    assert "captur" in str(stack.refused)
    torch.testing.assert_close(torch.rand(3, device="cuda"), expected, rtol=0, atol=0)
    torch.manual_seed(3)
    torch.testing.assert_close(torch.rand(3, device="cuda"), expected, rtol=0, atol=0)
    model(x).sum().backward()
    assert [type(block) for block in model] == [Waiting, Waiting]


def test_an_encoder_and_a_decoder_of_torch() -> None:
    torch.manual_seed(0)
    model = nn.Transformer(64, 2, 2, 2, 128, dropout=0.0, batch_first=True).cuda().train()
    plain = copy.deepcopy(model)
    given = (torch.randn(2, 8, 64, device="cuda"), torch.randn(2, 5, 64, device="cuda"))
    assert [stack.refused for stack in selector.replay(model, given)] == [None, None]
    for _ in range(2):
        for one in (model, plain):
            one(*given).square().mean().backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-5)
    assert "replayed=4 of 4 calls" in repr(model)
