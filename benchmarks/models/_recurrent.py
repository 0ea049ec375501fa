"""An LSTM language model, and translation by LSTMs with additive attention.

Dimensions: B batch, S seq, H hidden, V vocabulary. Recurrent layers take [S, B, H].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.models._parts import Parts
from benchmarks.models._transformer import Sizes


class LanguageModel(nn.Module):
    """Embeddings, LSTM layers with dropout around them, and the loss over the vocabulary."""

    def __init__(self, sizes: Sizes, batch: int, parts: Parts) -> None:
        super().__init__()
        hidden, dropout = sizes["hidden"], sizes.get("dropout", 0.0)
        self.word = nn.Embedding(sizes["vocabulary"], hidden)
        self.dropout = nn.Dropout(dropout)
        self.recurrent = parts.make(
            "recurrent",
            "lstm",
            hidden=hidden,
            batch=batch,
            seq=sizes["seq"],
            layers=sizes["layers"],
            dropout=dropout if sizes["layers"] > 1 else 0.0,
        )
        self.head = loss_of(sizes, batch, parts)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """ids and labels [B, S], to the loss."""
        y, _ = self.recurrent(self.dropout(self.word(ids.t())))
        found: Tensor = self.head(self.dropout(y).flatten(0, 1), labels.t().flatten())
        return found


class Translation(nn.Module):
    """Encoder and decoder of LSTM layers; all of the decoder's outputs attend at once (Luong et al. 2015)."""

    def __init__(self, sizes: Sizes, batch: int, parts: Parts) -> None:
        super().__init__()
        hidden, seq = sizes["hidden"], sizes["seq"]
        self.source, self.target = (nn.Embedding(sizes["vocabulary"], hidden) for _ in range(2))
        self.encoder, self.decoder = (
            parts.make(
                "encoder and decoder", "lstm", hidden=hidden, batch=batch, seq=seq, layers=sizes["layers"]
            )
            for _ in range(2)
        )
        self.attention = parts.make(
            "attention", "additive_attention", hidden=hidden, batch=batch, source=seq, target=seq
        )
        self.join = parts.make(
            "attention output",
            "linear",
            rows=batch * seq,
            in_features=2 * hidden,
            out_features=hidden,
        )
        self.head = loss_of(sizes, batch, parts)

    def forward(self, source: Tensor, ids: Tensor, labels: Tensor) -> Tensor:
        """Source, target so far and target, [B, S] each, to the loss."""
        memory, state = self.encoder(self.source(source.t()))
        out, _ = self.decoder(self.target(ids.t()), state)
        query = out.transpose(0, 1).contiguous()
        context, _ = self.attention(query, memory.transpose(0, 1).contiguous())
        y = torch.tanh(self.join(torch.cat((context, query), 2)))
        found: Tensor = self.head(y.flatten(0, 1), labels.flatten())
        return found


def loss_of(sizes: Sizes, batch: int, parts: Parts) -> nn.Module:
    """The linear layer of the vocabulary, with a bias, and its cross-entropy."""
    return parts.make(
        "loss",
        "linear_cross_entropy",
        rows=batch * sizes["seq"],
        hidden=sizes["hidden"],
        vocabulary=sizes["vocabulary"],
        bias=True,
    )


def make_pairs(sizes: Sizes, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Source, target shifted by one and target: the target is the source, its words in other order."""
    vocabulary, seq = sizes["vocabulary"], sizes["seq"]
    start = torch.randint(vocabulary, (batch, 1), generator=generator)
    source = (start + 3 * torch.arange(seq)) % vocabulary
    target = source.flip(1)
    return source, torch.cat((torch.zeros_like(target[:, :1]), target[:, :-1]), 1), target
