"""Small models of Hugging Face, what they are trained on, and what their layers are replaced by."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import selector
from tests.selector.models.rewriting.test_hugging_face import OVERRIDES, TINY

EVERY = {
    **OVERRIDES, "linear": "column_major", "linear_cross_entropy": "chunked", "rms_norm": "stand_in",
    "silu": "stand_in",
}  # fmt: skip


def trained_under(package: str) -> list[pytest.MarkDecorator]:
    """Marks of tests in which a package of the extra `integration` trains models."""
    return [
        pytest.mark.full,
        pytest.mark.skipif(find_spec(package) is None, reason="the extra 'integration' is not installed"),
        pytest.mark.usefixtures("stand_ins"),
        pytest.mark.filterwarnings("ignore"),  # of the libraries, about each other
    ]


def make(family: str) -> Any:
    """A language model without dropout."""
    import transformers

    torch.manual_seed(0)
    ends = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    if family == "gpt2":
        shares = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        sizes = {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **shares, **ends))
    if family == "llama":
        more = {"intermediate_size": 32, "num_key_value_heads": 1, "max_position_embeddings": 16}
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY, **more, **ends))
    shares = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(**TINY, **shares, intermediate_size=32, max_position_embeddings=16)
    return transformers.BertForMaskedLM(config)


def rows(count: int = 8) -> list[dict[str, Any]]:
    """A data set, with a column that no model takes."""
    words = torch.randint(3, 40, (count, 8), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": one, "labels": one.clone(), "source": 0} for one in words]


def batch() -> dict[str, Tensor]:
    found = rows(2)
    return {name: torch.stack([row[name] for row in found]) for name in ("input_ids", "labels")}


def optimized(model: Any, *, loss_alone: bool = False) -> Any:
    """The model in training with other layers, and with no logits where the loss alone is used."""
    more: Any = {"outputs": ("loss",)} if loss_alone else {}
    report = selector.optimize(model.train(), batch(), overrides=EVERY, **more)
    assert report.replaced, report
    return model


def step(model: nn.Module) -> list[Tensor]:
    """Loss, and the gradients of what is trained."""
    trained = [one for one in model.parameters() if one.requires_grad]
    loss = model(**batch()).loss
    return [loss, *torch.autograd.grad(loss, trained)]


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
