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
    summary,
)
from .parts import whole_results
from .standing import commits, is_fresh, mark

TABLES: Mapping[str, Callable[[Path], str]] = {
    "headline": headline.overview,
    "summary": summary.overview,
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

# what the tables of our kernels and models are of: names of result files, which say what code was measured
SOURCES: Mapping[str, tuple[str, ...]] = {
    "summary": ("recurrent", "linear", "sublayers", "hugging_face"),
    "lstm": ("lstm",),
    "recurrent": ("recurrent",),
    "recurrent_problems": ("recurrent",),
    "recurrent_gate": ("recurrent_gate",),
    "sublayers": ("sublayers",),
    "sublayer_problems": ("sublayers",),
    "sublayer_prices": ("sublayers",),
    "sublayer_gate": ("gate_sublayers",),
    "gate_verdicts": ("gate_verdicts",),
    "bert_layer": ("bert_layer",),
    "linear": ("linear",),
    "schedules": ("schedules",),
    "models": ("model",),
    "model_variants": ("model",),
    "hugging_face": ("hugging_face",),
    "hugging_face_variants": ("hugging_face",),
    "headline": ("recurrent", "linear", "hugging_face_bert-large", "hugging_face_gpt2-medium"),
}
# of others: cuDNN's own, choices of a database, and the service
OTHERS = ("cudnn", "choice_quality", "sealed_sets", "service")


def unmarked(folder: Path, blocks: Mapping[str, str]) -> list[str]:
    """What tables, by name as they stand in a document, do not say of the code that they measured."""
    return [
        f"{name}: {result['file']} was measured at {commits(result)} and its code has changed since, or may "
        "have: the table does not say so"
        for name, text in blocks.items()
        for comparison in SOURCES.get(name, ())
        for result in whole_results(folder, comparison)
        if not is_fresh(result) and mark(result) not in text
    ]


def stale(folder: Path) -> list[str]:
    """What tables show of code that has changed since, or may have: none of it is released."""
    names = dict.fromkeys(name for found in SOURCES.values() for name in found)
    results = {
        result["file"]: result
        for name in names
        for result in whole_results(folder, name)
        if not is_fresh(result)
    }
    return [f"{file}: {mark(result).replace('**', '')}" for file, result in results.items()]
