"""Deep Speech 2 (Amodei et al. 2015): convolutions over a spectrogram, recurrent layers, and letters.

Dimensions: B batch, T frames, S = T / 2 steps behind the convolutions, H hidden.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models._parts import Parts
from benchmarks.models._transformer import Sizes

LETTERS_A_STEP = 8  # steps for each letter of a transcript


class Speech(nn.Module):
    """Gives the connectionist temporal classification loss."""

    def __init__(self, sizes: Sizes, batch: int, parts: Parts) -> None:
        super().__init__()
        hidden, channels = sizes["hidden"], sizes.get("channels", 32)
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, channels, (41, 11), stride=(2, 2), padding=(20, 5), bias=False),
            nn.BatchNorm2d(channels),
            nn.Hardtanh(0, 20),
            nn.Conv2d(channels, channels, (21, 11), stride=(2, 1), padding=(10, 5), bias=False),
            nn.BatchNorm2d(channels),
            nn.Hardtanh(0, 20),
        )
        bins = sizes.get("bins", 161)
        features = channels * ((bins + 3) // 4)  # each convolution halves the bins, rounding up
        more: dict[str, Any] = {"batch": batch, "seq": sizes["seq"], "bidirectional": True}
        if sizes.get("operator", "rnn") == "rnn":
            more["nonlinearity"] = "relu"
        self.recurrent = nn.ModuleList(
            parts.make(
                "recurrent layers" if index else "first recurrent layer",
                sizes.get("operator", "rnn"),
                hidden=hidden,
                input=hidden if index else features,
                **more,
            )
            for index in range(sizes["layers"])
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(sizes["layers"]))
        self.letters = nn.Linear(hidden, sizes.get("letters", 29))

    def forward(self, spectrogram: Tensor, transcript: Tensor) -> Tensor:
        """Spectrograms [B, 1, bins, T] and letters [B, L], to the loss."""
        maps = self.convolutions(spectrogram)  # [B, C, F, S]
        x = maps.flatten(1, 2).permute(2, 0, 1).contiguous()  # [S, B, C F]
        for layer, norm in zip(self.recurrent, self.norms, strict=True):
            y, _ = layer(x)
            both = y.unflatten(2, (2, -1)).sum(2)  # the directions are added
            x = norm(both.flatten(0, 1)).view_as(both)
        scores = self.letters(x).float().log_softmax(2)
        steps = torch.full((x.size(1),), x.size(0), dtype=torch.long)
        lengths = torch.full((x.size(1),), transcript.size(1), dtype=torch.long)
        return functional.ctc_loss(scores, transcript, steps, lengths, zero_infinity=True)


def make_speech(sizes: Sizes, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Spectrograms that carry their transcripts: each letter is a bin that is louder for a while."""
    frames, bins = 2 * sizes["seq"], sizes.get("bins", 161)
    count = max(1, sizes["seq"] // LETTERS_A_STEP)
    transcript = torch.randint(1, sizes.get("letters", 29), (batch, count), generator=generator)
    spectrogram = 0.1 * torch.randn(batch, 1, bins, frames, generator=generator)
    loud = transcript.repeat_interleave(frames // count, 1)[:, :frames]
    index = torch.arange(loud.size(1))
    spectrogram[torch.arange(batch)[:, None], 0, loud % bins, index] += 2.0
    return spectrogram, transcript
