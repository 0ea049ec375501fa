"""Measure every table of kernels and models again, in pieces that fit a GPU's ten minutes, and take them in.

    python -m benchmarks.tables --list --device cuda:0 --results DIR
    python -m benchmarks.tables --device cuda:0 --results DIR --commit HASH [--budget 9m]
    python -m benchmarks.tables --take DIR

A piece is a command of another benchmark. Run the second line until it says that nothing is left: each call
goes on where the last one stopped, by what DIR holds, and takes the pieces in the order of --list, or those
of --piece. Each file is of one device and of one commit: what DIR holds of another commit is measured again.
What the budget cuts off is left for the next call. The third line moves whole files to `benchmarks/results/`,
large ones packed, and names those that cannot be used; `scripts/render-docs` makes tables of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.lines import keep
from benchmarks.common.result import RESULTS, BadResult, current_commit, laid_out, read_result
from kernel_selector.kernels.measure import default_torch_device, identify
from kernel_selector.kernels.measure.sweeps import parse_seconds

LEDGER = "tables.json"  # in DIR: how far each piece is
LEAST_S = 120  # of a budget, to begin a piece
GRACE_S = 30  # after which a piece that has not ended is ended
PACKED_BYTES = 100_000  # of a file, from which on it is packed
LEFT = 3  # exit status of a benchmark whose budget left some out

RESUMED = ("--resume", "--one-commit")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A command of one result file. `minutes` is about what it takes on an H100; `file` is followed by the
    device's key; `resumed` says whether it goes on where it stopped.
    """

    name: str
    module: str
    minutes: float
    file: str
    arguments: tuple[str, ...] = ()
    resumed: bool = True

    def command(self, options: argparse.Namespace, budget_s: float) -> list[str]:
        """The command's words."""
        where = ["--smoke"] if options.smoke else ["--device", options.device]
        return [
            *(sys.executable, "-m", self.module, *self.arguments, *where),
            *("--budget", f"{budget_s:.0f}s", "--commit", options.commit, "--results", str(options.results)),
        ]


def _compared(table: str, name: str, minutes: float, *rows: str) -> Piece:
    module = f"benchmarks.kernels.{table}"
    arguments = ("--rows", *rows, *RESUMED)
    return Piece(name=f"{table}-{name}", module=module, minutes=minutes, file=table, arguments=arguments)


def _hugging_face(model: str, batch: int) -> Piece:
    return Piece(
        name=f"hugging-face-{model}",
        module="benchmarks.models.hugging_face",
        minutes=9,
        file=f"hugging_face_{model}",
        arguments=(model, "--batch", str(batch)),
    )


def _model(model: str, *arguments: str) -> Piece:
    return Piece(
        name=f"model-{model}",
        module="benchmarks.models",
        minutes=8,
        file=f"model_{model}",
        arguments=(model, *arguments),
    )


# what tells most comes first
PIECES = (
    _compared("recurrent", "training", 8, "lstm", "gru", "rnn"),
    _compared("linear", "layers", 3, "layers"),
    _compared("sublayers", "peers", 6, "peers", "loss"),
    _compared("linear", "peers", 5, "peers"),
    _compared("recurrent", "peers", 3, "peers"),
    _compared("sublayers", "norms", 4, "norms_bandwidth"),
    _compared("sublayers", "attention", 9, "attention"),
    _compared("sublayers", "rest", 5, "attention_odd", "additive", "additive_more", "feed_forward"),
    _compared(
        "linear", "rest", 4, "odd_and_skinny", "skinny", "odd", "fused", "square", "float32", "batched"
    ),
    _compared(
        *("recurrent", "variants", 6),
        *("persistent", "long-bf16", "long-fp16", "batch-4", "recompute", "layers", "sequence", "step"),
    ),
    _compared("recurrent", "deepbench", 6, "deepbench"),
    _hugging_face("gpt2-medium", 8),
    _hugging_face("bert-large", 32),
    _hugging_face("roberta-large", 16),
    _model("lstm-language-model", "--batch", "20", "64", "--graphs", "--use", "recurrent=persistent"),
    _model(
        *("nmt", "--batch", "64", "128", "--graphs", "--use", "encoder and decoder=persistent"),
        *("attention=fused", "loss=chunked_vocabulary"),
    ),
    _model(
        *("deepspeech2", "--batch", "16", "32", "--use", "first recurrent layer=persistent"),
        "recurrent layers=persistent",
    ),
    Piece(name="lstm", module="benchmarks.kernels.lstm", minutes=6, file="lstm", resumed=False),
    Piece(
        name="bert-layer", module="benchmarks.kernels.bert_layer", minutes=5, file="bert_layer", resumed=False
    ),
    Piece(
        name="recurrent-gate",
        module="benchmarks.kernels.recurrent_gate",
        minutes=6,
        file="recurrent_gate",
        resumed=False,
    ),
    Piece(
        name="sublayer-gate",
        module="benchmarks.kernels.gate",
        minutes=9,
        file="gate_sublayers",
        resumed=False,
    ),
    Piece(
        name="schedules", module="benchmarks.kernels.schedules", minutes=9, file="schedules", resumed=False
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run pieces, list them, or take files in. The exit code: 0, or 1 after a failure, 3 if some are left."""
    options = _parser().parse_args(arguments)
    if options.take:
        return take(options.take, options.into)
    options.device = "cpu" if options.smoke else options.device or default_torch_device()
    options.commit = options.commit or current_commit()
    options.results = options.results or Path(tempfile.mkdtemp(prefix="tables-"))
    options.results.mkdir(parents=True, exist_ok=True)
    wanted = [piece for piece in PIECES if not options.piece or piece.name in options.piece]
    run = Run(options, identify(options.device).key)
    if options.list:
        for piece in wanted:
            words = " ".join(piece.command(options, 60 * piece.minutes)[1:])
            print(f"{piece.name}, {piece.minutes:g} min, {run.state(piece)}: {words}")
        return 0
    end = time.monotonic() + parse_seconds(options.budget)
    states = {piece.name: run.measure(piece, end) for piece in wanted}
    for name, state in states.items():
        print(f"{name}: {state}")
    if any(state.startswith("failed") for state in states.values()):
        return 1
    return 0 if all(state.startswith("done") for state in states.values()) else LEFT


class Run:
    """The pieces of one device and commit, as the ledger of a folder says how far they are."""

    def __init__(self, options: argparse.Namespace, key: str) -> None:
        self._options, self._key = options, key
        self._file: Path = options.results / LEDGER
        self._ended: dict[str, Any] = json.loads(self._file.read_text()) if self._file.exists() else {}

    def state(self, piece: Piece) -> str:
        """Words for how far a piece is: `done`, `left` over, `failed` and why, or `not begun`."""
        known = self._ended.get(piece.name, {})
        if (known.get("commit"), known.get("device")) != (self._options.commit, self._key):
            return "not begun"
        try:
            result = read_result(self._path(piece))
        except BadResult as error:
            return f"failed: {error}" if known["state"] == "done" else known["state"]
        if result["commit"] != self._options.commit:
            return "not begun"
        return f"{known['state']} ({known['seconds']:.0f} s)"

    def measure(self, piece: Piece, end: float) -> str:
        """Run a piece, until `end` (time.monotonic) at most, unless it is done; its state afterwards."""
        left_s = end - time.monotonic()
        if self.state(piece).startswith("done") or left_s < min(LEAST_S, 60 * piece.minutes):
            return self.state(piece)
        if not piece.resumed and left_s < 60 * piece.minutes and not self._options.smoke:
            return f"{self.state(piece)}, and takes {piece.minutes:g} minutes at once"
        began = time.monotonic()
        command = piece.command(self._options, left_s)
        print(f"== {piece.name}: {' '.join(command[1:])}", flush=True)
        try:
            status = subprocess.run(command, timeout=left_s + GRACE_S, check=False).returncode
        except subprocess.TimeoutExpired:
            status = LEFT
        # 1: one of ours failed, which the file says; what crashed has written none
        finished = status in (0, 1) and self._path(piece).exists()
        before = self._ended.get(piece.name, {})
        same = (before.get("commit"), before.get("device")) == (self._options.commit, self._key)
        spent_s = (before["seconds"] if same else 0.0) + time.monotonic() - began
        self._ended[piece.name] = {
            "commit": self._options.commit,
            "device": self._key,
            "state": "done" if finished else "left" if status == LEFT else f"failed with status {status}",
            "seconds": round(spent_s, 1),
        }
        self._file.write_text(laid_out(self._ended) + "\n")
        return self.state(piece)

    def _path(self, piece: Piece) -> Path:
        found: Path = self._options.results / f"{piece.file}_{self._key}.json"
        return found


def take(folder: Path, into: Path = RESULTS) -> int:
    """Move the whole results of a folder, large ones packed. The exit code: 1 where one cannot be used."""
    bad = 0
    for file in sorted(one for one in folder.glob("*.json") if one.name != LEDGER):
        try:
            read_result(file)
        except BadResult as error:
            print(f"left where it is: {error}", file=sys.stderr)
            bad += 1
            continue
        print(_pack(file.read_text(), into / file.name))
        if file.parent.resolve() != into.resolve():
            file.unlink()
    return int(bool(bad))


def _pack(text: str, file: Path) -> Path:
    """A result under its name, in the one form that its size asks for."""
    packed = file.with_suffix(".json.xz")
    if len(text) < PACKED_BYTES:
        file.write_text(text)
        packed.unlink(missing_ok=True)
        return file
    keep(text, packed)
    file.unlink(missing_ok=True)
    return packed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    names = [piece.name for piece in PIECES]
    add("--list", action="store_true", help="print the pieces, what they take and how far they are, and stop")
    add("--piece", nargs="+", metavar="NAME", choices=names, help="these alone (default: all)")
    add("--device", help="cpu or cuda:0 (default: the GPU if there is one)")
    add("--budget", default="9m", help="of this call (default: 9m)")
    add("--commit", help="what is measured, where there is no repository to ask")
    add("--results", type=Path, metavar="DIR", help="where files are written (default: a temporary folder)")
    add("--take", type=Path, metavar="DIR", help="move the files of DIR to where results are kept, and stop")
    add("--into", type=Path, metavar="DIR", default=RESULTS, help=f"where that is (default: {RESULTS.name}/)")
    add("--smoke", action="store_true", help="tiny sizes on the CPU")
    return parser


if __name__ == "__main__":
    sys.exit(main())
