"""Tables of README.md and docs/ by the name of their block, from the folder of result files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from . import (
    bert_layer,
    choice_quality,
    gates,
    headline,
    linear,
    lstm,
    models,
    recurrent,
    sealed_sets,
    service,
    sublayers,
)

TABLES: Mapping[str, Callable[[Path], str]] = {
    "headline": headline.overview,
    "lstm": lstm.overview,
    "recurrent": recurrent.overview,
    "recurrent_problems": recurrent.problems,
    "recurrent_gate": gates.recurrent,
    "cudnn": gates.cudnn,
    "sublayers": sublayers.overview,
    "sublayer_problems": sublayers.problems,
    "sublayer_prices": sublayers.prices,
    "sublayer_gate": gates.sublayers,
    "gate_verdicts": gates.verdicts,
    "bert_layer": bert_layer.overview,
    "linear": linear.overview,
    "schedules": linear.schedules,
    "models": partial(models.overview, comparison="model"),
    "model_variants": partial(models.whole, comparison="model"),
    "hugging_face": partial(models.overview, comparison="hugging_face"),
    "choice_quality": choice_quality.overview,
    "sealed_sets": sealed_sets.overview,
    "service": service.overview,
    "hugging_face_variants": partial(models.whole, comparison="hugging_face"),
}
