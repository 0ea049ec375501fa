"""The models by name: published sizes, tiny ones for a smoke test, and what makes model and batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common.result import ROOT
from benchmarks.models._parts import Parts
from benchmarks.models._recurrent import LanguageModel, Translation, make_pairs
from benchmarks.models._speech import Speech, make_speech
from benchmarks.models._transformer import Sizes, Transformer, make_batch
from benchmarks.models._translation import TransformerTranslation

PUBLISHED = ROOT / "selector" / "workloads" / "published.json"
# Vaswani et al. 2017, base; a planner has no attention of one sequence to another yet
TRANSLATION = {"family": "transformer_translation", "layers": 6, "hidden": 512, "heads": 8}
OWN: dict[str, Sizes] = {
    "transformer-nmt": {
        **TRANSLATION,
        "vocabulary": 37000,
        "seq": 128,
        "positions": 512,
        "activation": "relu",
    }
}
TINY: Sizes = {"layers": 2, "hidden": 32, "vocabulary": 61, "seq": 12}
HEADS = {"heads": 2, "positions": 16}


@dataclass(frozen=True)
class Family:
    """Functions that make a model for a batch size, and a batch of its inputs on the CPU."""

    model: Callable[[Sizes, int, Parts], nn.Module]
    batch: Callable[[Sizes, int, torch.Generator], tuple[Tensor, ...]]
    tiny: Sizes


FAMILIES = {
    "transformer": Family(Transformer, make_batch, {**TINY, **HEADS}),
    "language_model": Family(LanguageModel, make_batch, TINY),
    "translation": Family(Translation, make_pairs, TINY),
    "transformer_translation": Family(TransformerTranslation, make_pairs, {**TINY, **HEADS}),
    "speech": Family(Speech, make_speech, {"layers": 2, "hidden": 32, "seq": 16, "channels": 4, "bins": 41}),
}


@dataclass(frozen=True)
class Subject:
    """A model that is measured."""

    name: str
    family: Family
    sizes: Sizes

    def build(self, batch: int, parts: Parts) -> nn.Module:
        """The model on the CPU in training, for `batch` samples at once."""
        return self.family.model(self.sizes, batch, parts).train()

    def inputs(self, batch: int, seed: int, device: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """A batch of inputs, the same for the same seed; pictures of sound in the model's dtype."""
        generator = torch.Generator().manual_seed(seed)
        given = self.family.batch(self.sizes, batch, generator)
        return tuple(
            one.to(device, dtype if one.is_floating_point() else one.dtype, non_blocking=True)
            for one in given
        )


def names() -> list[str]:
    """Every model that can be measured."""
    return sorted(_sizes())


def subject(name: str, *, tiny: bool = False) -> Subject:
    """A model by name, with its published sizes, or `tiny` for a smoke test. Raises KeyError."""
    sizes = dict(_sizes()[name])
    family = FAMILIES[sizes.pop("family")]
    if family.model is LanguageModel:
        sizes["causal"] = True  # it predicts the next word
    return Subject(name, family, {**sizes, **family.tiny} if tiny else sizes)


def _sizes() -> dict[str, Any]:
    return {**json.loads(PUBLISHED.read_text())["models"], **OWN}
