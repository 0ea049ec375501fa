"""Hugging Face's models before and after `selector.optimize(model, example)`, called as a user would.

    python -m benchmarks.models.optimize --device cpu
    python -m benchmarks.models.optimize --device cuda:0 --only gpt2
    python -m benchmarks.models.optimize --smoke

Models are built from their configs with random weights, small ones on a CPU, and in bfloat16 on a GPU
those of 12 layers of 1024 (Llama: 8 of 2048; ViT-B). Afterwards a copy of the model as it was and the
optimized one take steps in turns, forward and backward from the loss as in a training loop, apart from what
`optimize` timed itself; with `--peers` so do copies that torch.compile compiled, which count against ours
where they are faster. Printed are the first line of each report and these factors with their intervals;
written is `optimize_<device>.json` or, with `--name`, under that, after each model. What a call on the same
commit wrote into it stays: a call for each model makes one file.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import selector
from benchmarks.common.arguments import add_result_arguments, result_folder
from benchmarks.common.peers import MAX_AUTOTUNE
from benchmarks.common.result import current_commit, write_result
from kernel_selector.kernels.measure import default_torch_device, identify
from selector.models.rewriting.paired_timing import Limits, Outcome, Turn, time_pairs

Example = dict[str, Tensor]
Made = tuple[Any, Example]  # a model and a batch with labels
Sizes = tuple[str, tuple[int, int], dict[str, Any]]  # its class, batch and sequence, and its config

_TWO = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 64, "intermediate_size": 256}
_FOUR = {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 256, "intermediate_size": 1024}
_ENDS = {"bos_token_id": 0, "eos_token_id": 0}
SMALL: dict[str, Sizes] = {
    "bert": ("BertForMaskedLM", (4, 32), {"vocab_size": 1000, **_TWO}),
    "bert-256": ("BertForMaskedLM", (4, 32), {"vocab_size": 1000, **_FOUR}),
    "distilbert": (
        "DistilBertForMaskedLM",
        (4, 32),
        {"vocab_size": 1000, "dim": 64, "n_layers": 2, "n_heads": 2, "hidden_dim": 256},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        (4, 32),
        {"vocab_size": 1000, "n_embd": 64, "n_layer": 2, "n_head": 2, **_ENDS},
    ),
    "llama": ("LlamaForCausalLM", (4, 32), {"vocab_size": 1000, **_TWO}),
    "vit": ("ViTForImageClassification", (4, 0), {"image_size": 32, "patch_size": 8, **_TWO}),
}
_BASE = {"num_hidden_layers": 12, "num_attention_heads": 16, "hidden_size": 1024, "intermediate_size": 4096}
_WIDE = {"num_hidden_layers": 8, "num_attention_heads": 16, "hidden_size": 2048, "intermediate_size": 5632}
LARGE: dict[str, Sizes] = {
    "bert": ("BertForMaskedLM", (16, 512), _BASE),
    "gpt2": ("GPT2LMHeadModel", (8, 512), {"n_embd": 1024, "n_layer": 12, "n_head": 16}),
    "llama": ("LlamaForCausalLM", (4, 1024), _WIDE),
    "vit": ("ViTForImageClassification", (64, 0), {}),
}
# modes of torch.compile
PEERS = {
    "compiled": None,
    "max-autotune": MAX_AUTOTUNE,
    "reduce-overhead": "reduce-overhead",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write, after each model. The exit code: 1 where a model became slower, else 0."""
    options = _parser().parse_args(arguments)
    on_cpu = options.smoke or (options.device or default_torch_device()) == "cpu"
    torch_device = "cpu" if on_cpu else options.device or default_torch_device()
    folder = result_folder(options, "optimize")
    known = list(SMALL if on_cpu else LARGE)
    names = options.only or known[: 1 if options.smoke else None]
    title = options.name or f"optimize_{identify(torch_device).key}"
    commit = options.commit or current_commit()
    rows = [one for one in _there(folder / f"{title}.json", commit) if one["model"] not in names]
    for name in names:
        torch.manual_seed(options.seed)
        model, example = made(name, torch_device)
        tried = ("ours",) if options.smoke else options.arrangements
        wish = {"arrangements": tried, "budget": options.budget}
        if options.loss_only:
            wish["outputs"] = ("loss",)
        seconds = 0.0 if options.smoke else options.seconds
        rows.append({"model": name, **row(model, example, seconds, wish, options.peers)})
        print(words_of(rows[-1]), flush=True)
        given = {"torch_device": torch_device, "seed": options.seed, "transformers": _version()}
        path = write_result(
            title,
            {**given, "rows": rows},
            torch_device=torch_device,
            commit=commit,
            folder=folder,
        )
    print(path)
    return int(any(one["outcome"]["low"] > 1 for one in rows))


def row(
    model: Any, example: Example, seconds: float, wish: dict[str, Any], peers: Sequence[str] = ()
) -> dict[str, Any]:
    """Report of `selector.optimize` on a model in training, and the times of its steps before and after, and
    of peers in turns with it.
    """
    theirs = copy.deepcopy(model.train())
    others = {name: copy.deepcopy(theirs) for name in peers}
    start = time.perf_counter()
    report = selector.optimize(model, example, **wish)
    took_s = time.perf_counter() - start
    turns = steps(theirs, example), steps(model, example)
    found = time_pairs(*turns, Limits(seconds=seconds), enough=lambda _: False)
    return {
        "first_line": report.first_line,
        "kept": report.kept,
        "arrangements": report.to_dict()["arrangements"],
        "optimize_s": round(took_s, 1),
        "replaced": dict(
            Counter(f"{one.problem.operator} -> {one.implementation}" for one in report.replaced)
        ),
        "left_alone": dict(Counter(f"{one.problem.operator}: {one.why}" for one in report.left_alone)),
        "outcome": {name: round(value, 5) for name, value in asdict(found).items()},
        "peers": {name: _against(other, name, model, example, seconds) for name, other in others.items()},
        "loss_difference": losses_apart(theirs, model, example),
    }


def _against(peer: Any, name: str, model: Any, example: Example, seconds: float) -> dict[str, float]:
    """Times of a peer's steps and of the model's, in turns, and the seconds that compiling the peer took."""
    start = time.perf_counter()
    peer.compile(mode=PEERS[name])
    steps(peer, example)(1)
    took_s = time.perf_counter() - start
    found = time_pairs(
        steps(peer, example), steps(model, example), Limits(seconds=seconds), enough=lambda _: False
    )
    return {**{name: round(value, 5) for name, value in asdict(found).items()}, "compile_s": round(took_s, 1)}


def _there(path: Path, commit: str) -> list[dict[str, Any]]:
    """Rows of an earlier call on the same commit."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    rows: list[dict[str, Any]] = found["rows"] if found.get("commit") == commit else []
    return rows


def steps(model: Any, example: Example) -> Turn:
    """Steps of a training loop without an optimizer, each timed with the device's work."""

    def turn(count: int) -> Sequence[float]:
        took = []
        for _ in range(count):
            _wait(model)
            start = time.perf_counter()
            model(**example).loss.backward()
            model.zero_grad(set_to_none=True)
            _wait(model)
            took.append((time.perf_counter() - start) * 1e3)
        return took

    return turn


@torch.no_grad()
def losses_apart(one: Any, other: Any, example: Example) -> float:
    """The difference of two models' losses without dropout."""
    found = [float(model.eval()(**example).loss) for model in (one, other)]
    one.train(), other.train()
    return abs(found[0] - found[1])


def words_of(line: dict[str, Any]) -> str:
    """A row in four lines."""
    found = Outcome(**line["outcome"])
    kept = ", ".join(f"{count} {name}" for name, count in line["replaced"].items()) or "nothing"
    return (
        f"{line['model']}: {line['first_line']}\n"
        f"    kept: {line['kept']}; replaced: {kept}; optimize took {line['optimize_s']} s\n"
        f"    apart from that: {found.before_ms:.3g} ms before, {found.after_ms:.3g} ms after, factor "
        f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f}, {found.pairs} pairs)\n"
        f"    losses differ by {line['loss_difference']:.2g}"
        + "".join(f"\n    {name}: {_compared(one)}" for name, one in line["peers"].items())
    )


def _compared(one: dict[str, float]) -> str:
    factor = f"{one['ratio']:.3f} ({one['low']:.3f} to {one['high']:.3f})"
    return f"{one['before_ms']:.3g} ms, and ours {one['after_ms']:.3g} ms, {factor} times as long"


def made(name: str, torch_device: str) -> Made:
    """One of SMALL in float32 on a CPU, or one of LARGE in bfloat16 on a GPU, with its batch."""
    import transformers

    on_cpu = torch_device == "cpu"
    kind, (batch, seq), sizes = (SMALL if on_cpu else LARGE)[name]
    config = getattr(transformers, f"{kind.partition('For')[0].removesuffix('LMHeadModel')}Config")(**sizes)
    model: Any = getattr(transformers, kind)(config).to(
        torch_device, torch.float32 if on_cpu else torch.bfloat16
    )
    if kind.startswith("ViT"):
        pictures = torch.randn(batch, 3, config.image_size, config.image_size)
        labels = torch.zeros(batch, dtype=torch.long, device=torch_device)
        return model, {"pixel_values": pictures.to(model.device, model.dtype), "labels": labels}
    words = torch.randint(config.vocab_size, (batch, seq)).to(torch_device)
    return model, {"input_ids": words, "labels": words}


def _wait(model: Any) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


def _version() -> str:
    import transformers

    found: str = transformers.__version__
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--device", help="cpu or cuda:0 (default: the GPU if there is one)")
    names = sorted({*SMALL, *LARGE})
    add("--only", nargs="+", metavar="NAME", choices=names, help="of the models (default: all)")
    add(
        "--arrangements",
        nargs="+",
        metavar="NAME",
        help="to try, as of `optimize` (default: all that can win)",
    )
    add("--budget", default="60s", help="of what `optimize` tries, such as 10m (default: 60s)")
    add("--loss-only", action="store_true", help="optimize for the loss alone, where the model has a head")
    add("--peers", nargs="+", default=[], choices=list(PEERS), help="torch.compile's modes beside ours")
    add("--name", help="of the file that is written and added to (default: optimize_<device>)")
    add("--seconds", type=float, default=10.0, help="of steps in turns afterwards (default: 10)")
    add_result_arguments(parser, smoke="one small model on the CPU", seed="weights and data")
    return parser


if __name__ == "__main__":
    sys.exit(main())
