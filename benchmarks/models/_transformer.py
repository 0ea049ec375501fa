"""BERT, RoBERTa and GPT-2 as one stack of layers.

Dimensions: B batch, S seq, H hidden, N heads, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from benchmarks.models._parts import Parts
from kernel_selector.kernels.runtime.joint_tensors import parts as parts_of

INIT_STD = 0.02
IGNORED = -100

Sizes = dict[str, Any]


class Block(nn.Module):
    """One layer: attention and a feed-forward block, each with dropout, addition and norm.

    With `prenorm` it takes and returns (normed, residual), both [B, S, H]: a norm follows each addition and
    is the next block's first one; else it takes and returns x [B, S, H]. Query, key and value are one product
    unless the model is published with a layer for each (`separate`) and torch trains it as published.
    """

    def __init__(self, sizes: Sizes, batch: int, parts: Parts) -> None:
        super().__init__()
        hidden, self.heads = sizes["hidden"], sizes["heads"]
        self.prenorm = sizes.get("prenorm", False)
        rows, dropout = batch * sizes["seq"], sizes.get("dropout", 0.1)
        self.projection = parts.make(
            "query, key, value", "linear", rows=rows, in_features=hidden, out_features=3 * hidden
        )
        self.chosen = bool(parts.choices)
        self.separate = sizes.get("separate", False) and not self.chosen
        self.attention = parts.make(
            "attention",
            "attention",
            batch=batch,
            heads=self.heads,
            seq=sizes["seq"],
            head_dim=hidden // self.heads,
            causal=sizes.get("causal", False),
            dropout=dropout,
        )
        self.out = parts.make("attention output", "linear", rows=rows, in_features=hidden)
        norm = {"rows": rows, "hidden": hidden, "dropout": dropout, "prenorm": self.prenorm}
        self.first, self.second = (
            parts.make("dropout, add, norm", "dropout_add_norm", **norm) for _ in range(2)
        )
        self.feed_forward = parts.make(
            "feed-forward",
            "feed_forward",
            rows=rows,
            hidden=hidden,
            inner=4 * hidden,
            activation=sizes.get("activation", "gelu"),
        )

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """x, which attention sees, and the residual [B, S, H] to the next; the same without `prenorm`."""
        batch, seq, hidden = x.shape
        q, k, v = (one.view(batch, seq, self.heads, -1).transpose(1, 2) for one in self._projected(x))
        context = self.attention(q, k, v).transpose(1, 2).reshape(batch, seq, hidden)
        y, z = self._added(self.first, self.out(context), residual)
        return self._added(self.second, self.feed_forward(y), z)

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        """Query, key and value [B, S, H] of x."""
        if self.chosen:
            return parts_of(self.projection(x), 3)
        if not self.separate:
            return self.projection(x).chunk(3, -1)  # type: ignore[no-any-return]
        held: Any = self.projection
        parts = zip(held.weight.chunk(3), held.bias.chunk(3), strict=True)
        return tuple(linear(x, weight, bias) for weight, bias in parts)

    def _added(self, norm: nn.Module, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        if self.prenorm:
            y, z = norm(x, residual)
            return y, z
        y = norm(x, residual)
        return y, y


class Head(nn.Module):
    """BERT's dense layer, GELU and norm, where the model has them, and the loss over the vocabulary."""

    def __init__(self, sizes: Sizes, batch: int, parts: Parts) -> None:
        super().__init__()
        hidden, rows = sizes["hidden"], batch * sizes["seq"]
        self.transform = nn.Identity()
        if sizes.get("transform"):
            self.transform = nn.Sequential(
                parts.make("head's dense layer", "linear", rows=rows, in_features=hidden),
                parts.make("head's GELU", "gelu", elements=rows * hidden),
                parts.make("head's norm", "layer_norm", rows=rows, hidden=hidden),
            )
        self.loss = parts.make(
            "loss",
            "linear_cross_entropy",
            rows=rows,
            hidden=hidden,
            vocabulary=sizes["vocabulary"],
            labelled=sizes.get("labelled", 1.0),
            bias=sizes.get("transform", False),
        )

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """x [B, S, H] and labels [B, S], to the loss."""
        found: Tensor = self.loss(self.transform(x).flatten(0, 1), labels.flatten())
        return found


class Transformer(nn.Module):
    """Embeddings, blocks and a head whose weight is that of the embeddings. Gives the loss.

    The first `recomputed` blocks, none at first, keep their input alone and run again in backward.
    """

    def __init__(self, sizes: Sizes, batch: int, parts: Parts) -> None:
        super().__init__()
        hidden = sizes["hidden"]
        self.word = nn.Embedding(sizes["vocabulary"], hidden)
        self.position = nn.Embedding(sizes["positions"], hidden)
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(sizes.get("dropout", 0.1))
        self.prenorm, self.recomputed = sizes.get("prenorm", False), 0
        self.blocks = nn.ModuleList(Block(sizes, batch, parts) for _ in range(sizes["layers"]))
        self.head = Head(sizes, batch, parts)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=INIT_STD)
        loss: Any = self.head.loss
        loss.weight = self.word.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """ids and labels [B, S], to the loss."""
        places = torch.arange(ids.size(1), device=ids.device)
        x = self.word(ids) + self.position(places)
        residual = x = self.dropout(x if self.prenorm else self.norm(x))
        if self.prenorm:
            x = self.norm(residual)
        for index, block in enumerate(self.blocks):
            if index < self.recomputed:
                x, residual = checkpoint(block, x, residual, use_reentrant=False)
            else:
                x, residual = block(x, residual)
        found: Tensor = self.head(x, labels)
        return found


def make_batch(sizes: Sizes, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Ids that can be learned (each word makes the next ones likely), and labels: the next word, or those
    words that are masked."""
    vocabulary, seq = sizes["vocabulary"], sizes["seq"]
    start = torch.randint(vocabulary, (batch, 1), generator=generator)
    stride = torch.randint(1, 8, (batch, 1), generator=generator)
    ids = (start + stride * torch.arange(seq + 1)) % vocabulary
    if sizes.get("causal"):
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    ids = ids[:, :-1].contiguous()
    hidden = torch.rand(batch, seq, generator=generator) < sizes.get("labelled", 1.0)
    hidden[:, 0] = True  # one label at least
    return ids.masked_fill(hidden, 0), ids.masked_fill(~hidden, IGNORED)


def quiet(model: nn.Module) -> None:
    """Drop nothing from now on."""
    for module in model.modules():
        held: Any = module
        if isinstance(getattr(module, "dropout", None), float):
            held.dropout = 0.0
        if isinstance(module, nn.Dropout):
            module.p = 0.0
