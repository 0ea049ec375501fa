"""Train a whole model in every way that there is, and write what each reaches.

    python -m benchmarks.models bert-large --device cuda:0 --caps 16 24 40 --plan bert16.json bert24.json
    python -m benchmarks.models nmt --batch 128 --use attention=fused "encoder and decoder=persistent"
    python -m benchmarks.models bert-large --smoke

Compared are attention written out (eager), torch's fused attention (sdpa), that compiled, in each mode of
torch.compile, with less memory for the partitioner, every block checkpointed, convolutions in the layout
channels_last as well, and ours: a plan of `selector plan MODEL --json`
each, or implementations by name. All train the same weights on the same generated data in one process, one
after the other: AdamW, dropout as published. Under each cap (GiB, of all memory of the process) a variant
takes the largest batch that fits; --batch runs that one without a cap. --losses runs so many steps of the
first of ours, of sdpa and of compile, over eight batches again and again, with dropout off and on. Writes
`model_<model>_<device>.json`, in which lines of earlier calls of the same commit stay and are not run again.
Needs torch and the standard library; a plan of `selector plan --replay` also this package's
`selector.replay`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.arguments import add_result_arguments, result_folder
from benchmarks.common.result import current_commit, write_result
from benchmarks.models._catalogue import names, subject
from benchmarks.models._steps import LEARNING_RATE, Earlier, Line, Trainer
from benchmarks.models._variants import Variant, channels_last, chosen, graphed, peers, planned
from kernel_selector.kernels.measure import default_torch_device, identify
from kernel_selector.kernels.measure.sweeps import parse_seconds

GIB = 2**30
LOSS_BATCH = 8
OURS = ("plan", "chosen")  # what names of variants of ours begin with
CAPS = (16.0, 24.0, 40.0)  # GiB
CONVOLVED = ("deepspeech2",)  # models with convolutions


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write. The exit code: 0, 1 where one of ours failed, 3 where time was short."""
    options = _options(arguments)
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    folder = result_folder(options, "models")
    torch_device = "cpu" if options.smoke else options.device or default_torch_device()
    device = identify(torch_device)
    dtype = "float32" if options.smoke else options.dtype
    trainer = Trainer(
        subject(options.model, tiny=options.smoke),
        device,
        torch_device,
        dtype=dtype,
        seed=options.seed,
        rate=options.rate,
        kernels=options.kernels,
    )
    name, commit = f"model_{options.model}_{device.key}", options.commit or current_commit()
    earlier = Earlier(folder / f"{name}.json", commit)
    program = _Program(trainer, _variants(options), options, earlier)
    for line in program.lines():
        print(words_of(line), flush=True)
        payload = {
            "model": options.model,
            "sizes": trainer.subject.sizes,
            "dtype": dtype,
            "torch_device": torch_device,
            "seed": options.seed,
            "learning_rate": options.rate,
            "rows": program.rows,
            "losses": program.curves,
        }
        # after each: whatever ends the program leaves what was measured until then
        write_result(name, payload, torch_device=torch_device, commit=commit, folder=folder)
    print(folder / f"{name}.json")
    ours = [line for line in (*program.rows, *program.curves) if line["variant"].startswith(OURS)]
    return 3 if program.short_of_time else int(any(line["status"] == "failed" for line in ours))


class _Program:
    """Everything that is run, in order, as long as there is time."""

    def __init__(
        self, trainer: Trainer, variants: list[Variant], options: argparse.Namespace, earlier: Earlier
    ) -> None:
        self._trainer, self._variants, self._options = trainer, variants, options
        self._earlier = earlier
        self._end = time.monotonic() + parse_seconds(options.budget)
        self.rows, self.curves = earlier.rows, earlier.losses
        self.short_of_time = False

    def lines(self) -> Any:
        """Each line as it is measured; it is in `rows` or `curves` then."""
        for variant in self._variants:
            for line in self._of(variant):
                self.rows.append(line)
                yield line
                if self._spent():
                    return
        for dropout in (False, True) if self._options.losses else ():
            for variant in self._compared():
                if self._earlier.has(variant.name, dropout=dropout):
                    continue
                self.curves.append(
                    self._trainer.losses(variant, LOSS_BATCH, self._options.losses, dropout=dropout)
                )
                yield self.curves[-1]
                if self._spent():
                    return

    def _of(self, variant: Variant) -> Any:
        options = self._options
        if not self._trainer.on_gpu:
            if not self._earlier.has(variant.name, batch=variant.batch or 2):
                yield self._trainer.run(variant, variant.batch or 2)
            return
        for batch in options.batch if variant.batch is None else ():
            if not self._earlier.has(variant.name, batch=batch):
                yield self._trainer.run(variant, batch)
        caps = [variant.limit_bytes] if variant.limit_bytes else [round(cap * GIB) for cap in options.caps]
        caps = [cap for cap in caps if not self._earlier.has(variant.name, cap_bytes=cap)]
        probes: list[Line] = []
        if caps and variant.batch is None:
            probes = [self._trainer.run(variant, batch) for batch in options.probes]
            yield from probes
        for cap in caps:
            yield self._trainer.under(variant, cap, probes)

    def _compared(self) -> list[Variant]:
        """The first of ours, fused attention as it is, and the same compiled: how far apart equals may be."""
        ours = [one for one in self._variants if one.choices]
        return [*ours[:1], *(one for one in self._variants if one.name in ("sdpa", "compile"))]

    def _spent(self) -> bool:
        self.short_of_time = time.monotonic() > self._end
        return self.short_of_time


def _variants(options: argparse.Namespace) -> list[Variant]:
    found = [planned(file) for file in options.plan]
    for index, words in enumerate(options.use):
        one = chosen(words)
        found.append(replace(one, name=f"{one.name} {index + 1}") if index else one)
    known = [*found, *peers()]
    if options.model in CONVOLVED:
        known += channels_last(known)
    if options.graphs:
        known += graphed(known)
    if not options.only:
        return known
    unknown = set(options.only) - {one.name for one in known}
    if unknown:
        raise SystemExit(f"unknown variants {sorted(unknown)}: there are {[one.name for one in known]}")
    return [one for one in known if one.name in options.only]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    found = _parser().parse_args(arguments)
    if not (found.caps or found.batch or found.plan or found.losses):
        found.caps = list(CAPS)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("model", choices=names(), metavar="MODEL", help=f"one of {', '.join(names())}")
    add("--device", help="cpu or cuda:0 (default: the GPU if there is one)")
    add(
        "--caps",
        type=float,
        nargs="+",
        default=[],
        metavar="GIB",
        help="of memory (16 24 40 if nothing is asked for)",
    )
    add("--batch", type=int, nargs="+", default=[], help="these batches, without a cap")
    add("--probes", type=int, nargs=2, default=[8, 16], help="batches that peaks are foretold from")
    add("--plan", type=Path, nargs="*", default=[], metavar="FILE", help="plans to run, at their own limits")
    add("--use", nargs="+", action="append", default=[], metavar="PART=NAME", help="implementations by name")
    add("--only", nargs="*", default=[], metavar="VARIANT", help="these variants alone")
    add("--graphs", action="store_true", help="each variant as CUDA graphs too, where it can be")
    add("--kernels", action="store_true", help="one more step of each, with the time of every kernel")
    add("--losses", type=int, default=0, metavar="STEPS", help="steps of the loss curves (default: none)")
    add("--dtype", default="bfloat16", help="of weights and computation (default: bfloat16)")
    add("--budget", default="9m", help="start nothing after this time (default: 9m)")
    add("--rate", type=float, default=LEARNING_RATE, help=f"of learning (default: {LEARNING_RATE})")
    add_result_arguments(parser, smoke="a tiny model on the CPU", seed="weights and data")
    return parser


def words_of(line: Line) -> str:
    """A line for people."""
    cap = f" under {line['cap_bytes'] / GIB:g} GiB" if line.get("cap_bytes") else ""
    head = f"{line['variant']}, batch {line['batch']}{cap}"
    if line["status"] != "ok":
        return f"{head}: {line['status']}, {line['reason']}"
    if "losses" in line:
        ends = line["losses"][0], line["losses"][-1]
        return f"{head}, dropout {'on' if line['dropout'] else 'off'}: loss {ends[0]} to {ends[1]}"
    peak = f", peak {line['peak_bytes'] / GIB:.2f} GiB" if line["peak_bytes"] else ""
    return f"{head}: {line['samples_per_s']} samples/s, {line['step_ms']} ms{peak}, loss {line['loss']}"


if __name__ == "__main__":
    sys.exit(main())
