"""Table of the figures that README.md names, each against the best way without this package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.kernels.linear import COMPARISON as LINEAR
from benchmarks.kernels.recurrent import COMPARISON as RECURRENT

from .models import best
from .parts import Result, compared_problems, comparisons, plain, table, whole_results
from .standing import by_device, origin

MODELS = {"bert-large": "BERT-large", "gpt2-medium": "GPT-2 medium"}  # of Hugging Face, of which all ways ran
WITHIN = "24 GiB"
ROWS = {"recurrent": ("lstm", "gru", "rnn"), "linear": ("layers",)}  # of the comparisons, by name
HEAD = (
    *("what", "as CUDA graphs, times as fast", "launched, times as fast", "compared with"),
    "measured",
)

Line = tuple[Result, tuple[str, ...]]


def overview(folder: Path) -> str:
    """For each device a line a figure: graphs against graphs, launched against launched, peers, the run."""
    return "".join(
        f"\n{device}:\n{table(HEAD, (line for _, line in found))}"
        for device, found in by_device((*_layers(folder), *_trained(folder))).items()
    )


def _layers(folder: Path) -> Iterator[Line]:
    for comparison in (RECURRENT, LINEAR):
        for result in comparisons(folder, comparison.name, comparison.kind):
            for row in result["rows"]:
                if row["name"] in ROWS[comparison.name] and compared_problems(row) == row["cells"]:
                    figures = row["figures"]
                    peers = _peers(result, row["name"], comparison.kind.figures.of_users)
                    title = f"{row['title']} (geometric mean of {row['cells']} problems)"
                    ratios = (plain(figures.get(form)) for form in ("graph", "eager"))
                    yield result, (title, *ratios, peers, _run(result))


def _peers(result: Result, row: str, of_users: Callable[[str], bool]) -> str:
    """Names of what users have that every problem of a row was timed with."""
    found = [
        {name for name, one in cell["candidates"].items() if one["times"] and of_users(name)}
        for cell in result["records"]
        if row in cell["rows"]
    ]
    return ", ".join(f"`{name}`" for name in sorted(set.intersection(*found))) if found else "-"


def _trained(folder: Path) -> Iterator[Line]:
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
                title = f"training Hugging Face's {name} in {result['dtype']} within {WITHIN}"
                yield result, (title, *ratios, "; ".join(dict.fromkeys(peers)), _run(result))


def _run(result: Result) -> str:
    """A link to the file, the day, and at what commits it was measured."""
    return f"[file](benchmarks/results/{result['file']}), {origin(result)}"
