"""Train Hugging Face's models as they come and after `selector.optimize`, and write what each reaches.

    python -m benchmarks.models.hugging_face bert-large --device cuda:0 --batch 32 --caps 16 --losses 100
    python -m benchmarks.models.hugging_face gpt2 --smoke

Compared are their eager attention, their sdpa attention, that with each layer compiled, that and the loss
without all logits at once, that compiled whole, with head and loss, in each mode of torch.compile, that with
its layers replayed as CUDA graphs (`selector.replay`), what
`selector.optimize` makes of sdpa where the loss alone is used, and that replayed: at each batch without a
limit, and under each cap (GiB, of all memory of the process while it trains), ours with `memory_limit` and
the largest batch that a plan finds, theirs with the largest that fits: also compiled with less memory for
the partitioner, and every layer checkpointed. Weights are random, from the classes of their configs.
--losses runs so many steps of ours and twice of sdpa, dropout off. --only runs some of these by name. Writes
`hugging_face_<model>_<device>.json`, after each line; lines of earlier calls of the same commit stay in it
and are not run again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.common.arguments import add_result_arguments, result_folder
from benchmarks.common.result import current_commit, write_result
from benchmarks.models.__main__ import GIB, LOSS_BATCH, words_of
from benchmarks.models._hugging_face import MODELS, Theirs, hugging_face, optimized, plan_of
from benchmarks.models._parts import Parts
from benchmarks.models._steps import TRIES, Earlier, Line, Trainer
from benchmarks.models._variants import BUDGETS, EVERY_BLOCK, MODES, Variant
from kernel_selector.kernels.contract import Device
from kernel_selector.kernels.measure import default_torch_device, identify
from kernel_selector.kernels.measure.sweeps import parse_seconds

ATTENTIONS = ("eager", "sdpa")
SDPA, COMPILED = Theirs(name="sdpa"), Theirs(name="sdpa, compiled", compiled=True)
WHOLE = Theirs(name="sdpa, compiled whole", whole=True)
CHUNKED_LOSS = replace(SDPA, name="sdpa, loss without logits", chunked=True)
CHUNKED = replace(COMPILED, name="sdpa, compiled, loss without logits", chunked=True)
AUTOTUNED, OVERHEAD = (replace(WHOLE, name=f"{WHOLE.name}, {mode}", mode=mode) for mode in MODES)
WITHIN = tuple(
    replace(one, name=f"{one.name}, budget {budget:g}", budget=budget)
    for one in (COMPILED, WHOLE)
    for budget in BUDGETS
)
CHECKPOINTED = Theirs(name="sdpa, checkpointed", recomputed=EVERY_BLOCK)
EAGER = Theirs(name="eager", written_out=True)
REPLAYED = Theirs(name="sdpa, replayed", replayed=True)
OURS = "optimized"
TOO_MUCH = ("OutOfMemoryError", "NothingFits")  # in the reason of a run


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write. The exit code: 0, 1 where ours failed, 3 where time was short."""
    options = _parser().parse_args(arguments)
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    folder = result_folder(options, "models")
    torch_device = "cpu" if options.smoke else options.device or default_torch_device()
    options.dtype = dtype = "float32" if options.smoke else options.dtype
    device, commit = identify(torch_device), options.commit or current_commit()
    name = f"hugging_face_{options.model}_{device.key}"
    options.earlier = earlier = Earlier(folder / f"{name}.json", commit)
    rows, losses = earlier.rows, earlier.losses
    trainers = {
        attention: Trainer(
            hugging_face(options.model, attention, tiny=options.smoke),
            device,
            torch_device,
            dtype=dtype,
            seed=options.seed,
        )
        for attention in ATTENTIONS
    }
    end = time.monotonic() + parse_seconds(options.budget)
    for line in _lines(trainers, options, torch_device, device):
        print(words_of(line), flush=True)
        (losses if "losses" in line else rows).append(line)
        payload = {
            "model": options.model,
            "sizes": trainers["sdpa"].subject.sizes,
            "dtype": dtype,
            "torch_device": torch_device,
            "seed": options.seed,
            "transformers": _version(),
            "rows": rows,
            "losses": losses,
        }
        write_result(name, payload, torch_device=torch_device, commit=commit, folder=folder)
        if time.monotonic() > end:
            return 3
    print(folder / f"{name}.json")
    failed = [
        one for one in (*rows, *losses) if one["variant"].startswith(OURS) and one["status"] == "failed"
    ]
    return 1 if failed else 0


def _lines(
    trainers: dict[str, Trainer], options: argparse.Namespace, torch_device: str, device: Device
) -> Iterator[Line]:
    """Ours first: what is left of the budget goes to the others."""
    sdpa = trainers["sdpa"]
    graphs = (False, True) if sdpa.on_gpu else (False,)
    tried = ("ours",) if options.smoke else None
    ours: list[Variant] = [optimized(replayed=replayed, arrangements=tried) for replayed in graphs]
    # what takes longest to compile last
    theirs = (
        (SDPA, COMPILED, CHUNKED, WHOLE, REPLAYED, OVERHEAD, AUTOTUNED)
        if sdpa.on_gpu
        else (SDPA, CHUNKED_LOSS)
    )
    for batch in options.batch:
        for variant in _wanted([*ours, *theirs], options, batch=batch):
            yield sdpa.run(variant, batch)
        for variant in _wanted([EAGER], options, batch=batch):
            yield trainers["eager"].run(variant, batch)
    probes: dict[str, list[Line]] = {}
    # sdpa twice: what two runs of the same model differ by
    curves = [*ours, SDPA, Theirs(name="sdpa, again")]
    for variant in _wanted(curves, options, dropout=False) if options.losses else ():
        yield sdpa.losses(variant, LOSS_BATCH, options.losses, dropout=False)
    for cap in (round(one * GIB) for one in options.caps if sdpa.on_gpu):
        parts = Parts(dtype=options.dtype, device=device)
        for variant in _wanted(ours, options, cap_bytes=cap):
            yield _under(sdpa, parts, torch_device, cap, variant.replayed)
        for variant in _wanted(
            [COMPILED, CHUNKED, WHOLE, *WITHIN, SDPA, CHECKPOINTED, EAGER], options, cap_bytes=cap
        ):
            trainer = trainers["eager"] if variant.written_out else sdpa
            if variant.name not in probes:
                probes[variant.name] = [trainer.run(variant, batch) for batch in options.probes]
            yield trainer.under(variant, cap, probes[variant.name])


def _wanted(variants: Sequence[Variant], options: argparse.Namespace, **at: Any) -> list[Variant]:
    """Those that are asked for and have no line of this batch, cap or curve yet."""
    asked = [one for one in variants if not options.only or one.name in options.only]
    return [one for one in asked if not options.earlier.has(one.name, **at)]


def _under(trainer: Trainer, parts: Parts, torch_device: str, cap_bytes: int, replayed: bool) -> Line:
    """Ours under a cap, at the batch of a plan; at an eighth less where that does not fit, some times."""
    variant = optimized(cap_bytes, replayed=replayed)
    line: Line = {"variant": variant.name, "batch": None, "cap_bytes": cap_bytes, "status": "failed"}
    try:
        plan = plan_of(trainer.subject, parts, torch_device, cap_bytes, replayed=replayed)
    except Exception as error:
        return {**line, "reason": f"{type(error).__name__}: {error}"}
    batch = plan.batch
    for _ in range(TRIES):
        line = trainer.run(variant, batch, cap_bytes)
        # memory may run out while blocks are captured, too, which is a failure of its own
        if not any(word in line.get("reason", "") for word in TOO_MUCH) or batch < 2:
            break
        batch -= max(1, batch // 8)
    if line["batch"] != plan.batch:
        return line
    return {**line, "planned": {"peak_bytes": plan.peak_bytes, "samples_per_s": plan.samples_per_s}}


def _version() -> str:
    import transformers

    found: str = transformers.__version__
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("model", choices=MODELS, metavar="MODEL", help=f"one of {', '.join(MODELS)}")
    add("--device", help="cpu or cuda:0 (default: the GPU if there is one)")
    add("--batch", type=int, nargs="*", default=[16], help="without a cap (default: 16)")
    add("--caps", type=float, nargs="*", default=[], metavar="GIB", help="of memory (default: none)")
    add("--only", nargs="*", default=[], metavar="NAME", help="of what is compared (default: all)")
    add("--probes", type=int, nargs=2, default=[8, 16], help="batches that peaks are foretold from")
    add("--losses", type=int, default=0, metavar="STEPS", help="steps of the loss curves (default: none)")
    add("--dtype", default="bfloat16", help="of weights and computation (default: bfloat16)")
    add("--budget", default="5m", help="start nothing after this time (default: 5m)")
    add_result_arguments(parser, smoke="a tiny model on the CPU", seed="weights and data")
    return parser


if __name__ == "__main__":
    sys.exit(main())
