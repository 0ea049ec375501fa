"""Table of the figures that README.md names, each against the best way without this package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from .models import best
from .parts import plain, table

MODELS = {"bert-large": "BERT-large", "gpt2-medium": "GPT-2 medium"}  # of Hugging Face, of which all ways ran
WITHIN = "24 GiB"
LAYERS = "layers of RNN, NMT, BERT-large and GPT-2 training"  # what the row's title begins with


def overview(folder: Path) -> str:
    """A line a figure: what, ours, the best without us, the ratio, the card, the run and its file."""
    head = ("what", "ours", "the best without us", "times as fast", "card", "measured")
    return table(head, (*_trained(folder), _linear(folder / "linear_nvidia-h200.json")))


def _trained(folder: Path) -> Iterator[tuple[str, ...]]:
    for model, name in MODELS.items():
        file = folder / f"hugging_face_{model}_nvidia-h200.json"
        result = json.loads(file.read_text())
        found = best(result, WITHIN)
        ours, peer = (f"{plain(line['samples_per_s'])} samples/s" for line in found)
        yield (
            f"training Hugging Face's {name} in {result['dtype']} within {WITHIN}",
            f"{ours} ({found[0]['variant']})",
            f"{peer} ({found[1]['variant']})",
            f"{found[0]['samples_per_s'] / found[1]['samples_per_s']:.2f}",
            result["device"],
            _run(
                file,
                found[0].get("commit", result["commit"]),
                found[0].get("measured_at", result["measured_at"]),
            ),
        )


def _linear(file: Path) -> tuple[str, ...]:
    result = json.loads(file.read_text())
    (row,) = (row for row in result["rows"] if row["title"].startswith(LAYERS))
    ratio = plain(row["figures"]["best"])
    return (
        f"linear {row['title']}",
        f"geometric mean of {row['measured']} problems",
        "the fastest of torch's and torch.compile's, launched or as CUDA graphs",
        ratio,
        result["device"],
        _run(file, result["commit"], result["measured_at"]),
    )


def _run(file: Path, commit: str, measured_at: str) -> str:
    """Commit and day of the line of ours, with a link to the file."""
    return f"`{commit}`, [{measured_at[:10]}](benchmarks/results/{file.name})"
