"""Table of the figures that README.md names, each against the best way without this package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.kernels.linear import COMPARISON as LINEAR
from benchmarks.kernels.recurrent import COMPARISON as RECURRENT

from .models import best
from .parts import Result, comparisons, plain, table, whole_results
from .standing import mark

MODELS = {"bert-large": "BERT-large", "gpt2-medium": "GPT-2 medium"}  # of Hugging Face, of which all ways ran
WITHIN = "24 GiB"
ROWS = {"recurrent": ("lstm", "gru", "rnn"), "linear": ("layers",)}  # of the comparisons, by name
HEAD = (
    *("what", "as CUDA graphs, times as fast", "launched, times as fast", "the best without us"),
    *("card", "measured"),
)


def overview(folder: Path) -> str:
    """A line a figure: graphs against graphs, launched against launched, the peers, the card, the run."""
    return table(HEAD, (*_layers(folder), *_trained(folder)))


def _layers(folder: Path) -> Iterator[tuple[str, ...]]:
    for comparison in (RECURRENT, LINEAR):
        for result in comparisons(folder, comparison.name, comparison.kind):
            for row in result["rows"]:
                if row["name"] in ROWS[comparison.name] and row["measured"] == row["cells"]:
                    figures = row["figures"]
                    yield (
                        f"{row['title']} (geometric mean of {row['measured']} problems)",
                        plain(figures.get("graph")),
                        plain(figures.get("eager")),
                        _peers(result, row["name"], comparison.kind.figures.of_users),
                        result["device"],
                        _run(result),
                    )


def _peers(result: Result, row: str, of_users: object) -> str:
    """Names of what users have that every problem of a row was timed with."""
    found = [
        {name for name, one in cell["candidates"].items() if one["times"] and of_users(name)}  # type: ignore[operator]
        for cell in result["records"]
        if row in cell["rows"]
    ]
    return ", ".join(f"`{name}`" for name in sorted(set.union(*found))) if found else "-"


def _trained(folder: Path) -> Iterator[tuple[str, ...]]:
    for model, name in MODELS.items():
        for result in whole_results(folder, f"hugging_face_{model}", "rows"):
            ratios, peers = [], []
            for graphs in (True, False):
                ours, peer = best(result, WITHIN, graphs)
                ratios.append(
                    f"{ours['samples_per_s'] / peer['samples_per_s']:.2f}" if ours and peer else "-"
                )
                if ours and peer:
                    peers.append(f"{peer['variant']}: {plain(peer['samples_per_s'])} samples/s")
            if peers:
                yield (
                    f"training Hugging Face's {name} in {result['dtype']} within {WITHIN}",
                    *ratios,
                    "; ".join(dict.fromkeys(peers)),
                    result["device"],
                    _run(result),
                )


def _run(result: Result) -> str:
    """The day, with a link to the file, and at what commit it was measured."""
    file = f"benchmarks/results/{result['file']}"
    return f"[{result['measured_at'][:10]}]({file}), `{result['commit']}`; {mark(result)}"
