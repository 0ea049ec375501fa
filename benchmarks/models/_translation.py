"""Translation by a transformer: encoder, decoder that also attends to the encoder, and the loss (Vaswani)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.models._parts import Parts
from benchmarks.models._transformer import INIT_STD, Block, Sizes


class DecoderBlock(nn.Module):
    """A block whose outputs attend to the memory, between its attention and its feed-forward layer."""

    def __init__(self, sizes: Sizes, batch: int, parts: Parts) -> None:
        super().__init__()
        hidden, self.heads = sizes["hidden"], sizes["heads"]
        self.own = Block({**sizes, "causal": True}, batch, parts)
        rows, seq = batch * sizes["seq"], sizes["seq"]
        square = {"rows": rows, "in_features": hidden}
        self.query, self.key, self.value = (
            parts.make("cross query, key, value", "linear", **square) for _ in range(3)
        )
        heads = {"batch": batch, "heads": self.heads, "seq": seq, "head_dim": hidden // self.heads}
        dropout = sizes.get("dropout", 0.1)
        self.attention = parts.make("cross attention", "attention", **heads, dropout=dropout)
        self.out = parts.make("attention output", "linear", **square)
        self.norm = parts.make(
            "dropout, add, norm", "dropout_add_norm", rows=rows, hidden=hidden, dropout=dropout
        )

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """x and memory [B, S, H], to [B, S, H]."""
        y, _ = self.own(x, x)
        q, k, v = (
            projection(one).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for projection, one in ((self.query, y), (self.key, memory), (self.value, memory))
        )
        context = self.attention(q, k, v).transpose(1, 2).flatten(2)
        found: Tensor = self.norm(self.out(context), y)
        return found


class TransformerTranslation(nn.Module):
    """Gives the loss of the target's words. Embeddings of both languages and the head share their weight."""

    def __init__(self, sizes: Sizes, batch: int, parts: Parts) -> None:
        super().__init__()
        hidden = sizes["hidden"]
        self.word = nn.Embedding(sizes["vocabulary"], hidden)
        self.position = nn.Embedding(sizes["positions"], hidden)
        self.dropout = nn.Dropout(sizes.get("dropout", 0.1))
        self.encoder = nn.ModuleList(Block(sizes, batch, parts) for _ in range(sizes["layers"]))
        self.decoder = nn.ModuleList(DecoderBlock(sizes, batch, parts) for _ in range(sizes["layers"]))
        self.head = parts.make(
            "loss",
            "linear_cross_entropy",
            rows=batch * sizes["seq"],
            hidden=hidden,
            vocabulary=sizes["vocabulary"],
        )
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=INIT_STD)
        self.head.weight = self.word.weight

    def forward(self, source: Tensor, ids: Tensor, labels: Tensor) -> Tensor:
        """Source, target so far and target, [B, S] each, to the loss."""
        places = self.position(torch.arange(source.size(1), device=source.device))
        memory = residual = self.dropout(self.word(source) + places)
        for block in self.encoder:
            memory, residual = block(memory, residual)
        x = self.dropout(self.word(ids) + places)
        for block in self.decoder:
            x = block(x, memory)
        found: Tensor = self.head(x.flatten(0, 1), labels.flatten())
        return found
