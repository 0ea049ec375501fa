"""Measure the tables of kernels and models again, in pieces that fit a GPU's ten minutes, and take them in.

    python -m benchmarks.tables --list --device cuda:0 --results DIR
    python -m benchmarks.tables --device cuda:0 --results DIR --commit HASH [--budget 9m]
    python -m benchmarks.tables --take DIR

A piece is a command of another benchmark. Run the second line until it says that nothing is left: each call
goes on where the last one stopped, by what DIR holds, and takes the pieces in the order of --list, or those
of --piece. Each file is of one device and of one commit: what DIR holds of another commit is measured again.
What the budget cuts off is left for the next call. The third line moves files to `benchmarks/results/`, large
ones packed, and names those that cannot be used and those of which pieces are left; `scripts/render-docs`
makes tables of them. Not among the pieces are models as a plan arranges them, which take a plan of
`selector plan` each, and the gate's verdicts on every operator (`benchmarks.kernels.gate_verdicts`).
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.lines import put
from benchmarks.common.result import RESULTS, BadResult, current_commit, laid_out, pack, read_result
from kernel_selector.kernels.contract.errors import SelectorError
from kernel_selector.kernels.measure import default_torch_device, identify
from kernel_selector.kernels.measure.sweeps import parse_seconds

LEDGER = "tables.json"  # in DIR: how far each piece is
LEAST_S = 120  # of a budget, to begin a piece
GRACE_S = 30  # after which a piece that has not ended is ended
FAILED, LEFT = 1, 3  # exit statuses of a benchmark: one of ours failed, its budget left some out

RESUMED = ("--resume", "--one-commit")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A command of one result file. `minutes` is about what it takes on an H100; `file` is followed by the
    device's key; `resumed` says whether it goes on where it stopped, `judges` whether it exits with FAILED
    for what its file says: others do where they crash.
    """

    name: str
    module: str
    minutes: float
    file: str
    arguments: tuple[str, ...] = ()
    resumed: bool = True
    judges: bool = False

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
        judges=True,
    )


def _model(model: str, *arguments: str) -> Piece:
    return Piece(
        name=f"model-{model}",
        module="benchmarks.models",
        minutes=8,
        file=f"model_{model}",
        arguments=(model, *arguments),
        judges=True,
    )


def _judging(name: str, module: str, minutes: float, *, file: str) -> Piece:
    module = f"benchmarks.kernels.{module}"
    return Piece(name=name, module=module, minutes=minutes, file=file, resumed=False, judges=True)


# what tells most comes first
PIECES = (
    _compared("recurrent", "training", 8, "lstm", "gru", "rnn"),
    _compared("linear", "layers", 3, "layers"),
    _compared("sublayers", "peers", 9, "peers"),
    _compared("sublayers", "losses", 9, "loss"),
    _compared("linear", "peers", 5, "peers"),
    _compared("recurrent", "peers", 2, "peers"),
    _compared("sublayers", "norms", 7, "norms_bandwidth"),
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
    _judging("bert-layer", "bert_layer", 5, file="bert_layer"),
    _judging("recurrent-gate", "recurrent_gate", 6, file="recurrent_gate"),
    _judging("sublayer-gate", "gate", 9, file="gate_sublayers"),
    Piece(
        name="schedules", module="benchmarks.kernels.schedules", minutes=9, file="schedules", resumed=False
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run pieces, list them, or take files in. The exit code: 0, or 1 after a failure, 2 for what was asked
    wrongly, 3 if some are left.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return take(options.take, options.into) if options.take else _measure(options)
    except (SelectorError, BadResult, NotADirectoryError) as error:
        parser.error(str(error))


def _measure(options: argparse.Namespace) -> int:
    options.device = "cpu" if options.smoke else options.device or default_torch_device()
    options.commit = options.commit or current_commit()
    wanted = [piece for piece in PIECES if not options.piece or piece.name in options.piece]
    key = identify(options.device).key
    if options.list:
        options.results = options.results or Path("DIR")
        run = Run(options, key)
        for piece in wanted:
            words = shlex.join(piece.command(options, 60 * piece.minutes)[1:])
            print(f"{piece.name}, {piece.minutes:g} min, {run.state(piece)}: {words}")
        return 0
    end = time.monotonic() + parse_seconds(options.budget)
    options.results = options.results or Path(tempfile.mkdtemp(prefix="tables-"))
    options.results.mkdir(parents=True, exist_ok=True)
    run = Run(options, key)
    states = {piece.name: run.measure(piece, end) for piece in wanted}
    for name, state in states.items():
        print(f"{name}: {state}")
    failed, done = (sum(state.startswith(word) for state in states.values()) for word in ("failed", "done"))
    print(f"{len(states) - done - failed} of {len(states)} pieces are left, {failed} failed")
    return 1 if failed else 0 if done == len(states) else LEFT


class Run:
    """The pieces of one device and commit, as the ledger of a folder says how far they are."""

    def __init__(self, options: argparse.Namespace, key: str) -> None:
        self._options, self._key = options, key
        self._ended = ledger(options.results)

    def state(self, piece: Piece) -> str:
        """Words for how far a piece is: `done`, `left` over, `failed` and why, or `not begun`."""
        known = self._known(piece)
        if not known:
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
        if not piece.resumed and left_s + GRACE_S < 60 * piece.minutes and not self._options.smoke:
            return f"{self.state(piece)}, and takes {piece.minutes:g} minutes at once"
        began = time.monotonic()
        command = piece.command(self._options, left_s)
        print(f"== {piece.name}: {shlex.join(command[1:])}", flush=True)
        try:
            status = subprocess.run(command, timeout=left_s + GRACE_S, check=False).returncode
        except subprocess.TimeoutExpired:
            status = LEFT
        finished = status == 0 or (piece.judges and status == FAILED and self._path(piece).exists())
        spent_s = self._known(piece).get("seconds", 0.0) + time.monotonic() - began
        self._ended[piece.name] = {
            "commit": self._options.commit,
            "device": self._key,
            "state": "done" if finished else "left" if status == LEFT else f"failed with status {status}",
            "seconds": round(spent_s, 1),
        }
        put(laid_out(self._ended) + "\n", self._options.results / LEDGER)
        return self.state(piece)

    def _known(self, piece: Piece) -> dict[str, Any]:
        """What the ledger says of a piece on this device and commit; nothing where it is of others."""
        found = self._ended.get(piece.name, {})
        mine = (found.get("commit"), found.get("device")) == (self._options.commit, self._key)
        return found if mine else {}

    def _path(self, piece: Piece) -> Path:
        found: Path = self._options.results / f"{piece.file}_{self._key}.json"
        return found


def ledger(folder: Path) -> dict[str, dict[str, Any]]:
    """State of each piece in a folder, by its name. Raises BadResult for a ledger that cannot be read."""
    file = folder / LEDGER
    try:
        found: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
        for one in found.values():
            one["commit"], one["device"], one["state"], one["seconds"]
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise BadResult(
            f"{file}: cut off, or no ledger of pieces ({type(error).__name__}: {error}). Remove it: problems "
            "that the result files beside it hold are not measured again."
        ) from error
    return found


def take(folder: Path, into: Path = RESULTS) -> int:
    """Move the results of a folder, large ones packed. The exit code: 1 where one cannot be used, or where
    there is none. Raises BadResult, and NotADirectoryError.
    """
    for one in (folder, into):
        if not one.is_dir():
            raise NotADirectoryError(f"{one}: expected a folder of results.")
    files = sorted(one for one in folder.glob("*.json") if one.name != LEDGER)
    if not files:
        print(f"{folder} has no results: give the --results of the calls that measured.", file=sys.stderr)
        return 1
    known, bad = ledger(folder), 0
    keys = {one["device"] for one in known.values()}
    for file in files:
        try:
            read_result(file)
        except BadResult as error:
            print(f"left where it is: {error}", file=sys.stderr)
            bad += 1
            continue
        for piece in PIECES:
            state = known.get(piece.name, {}).get("state", "not begun")
            if file.name in {f"{piece.file}_{key}.json" for key in keys} and state != "done":
                print(f"{file.name} is taken, of which {piece.name} is {state}", file=sys.stderr)
        print(pack(file.read_text(), into / file.name))
        if folder.resolve() != into.resolve():
            file.unlink()
    return int(bool(bad))


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
