"""Time that torch.compile takes for a model with recurrent layers of ours, beside the model without them.

    python -m benchmarks.models.compile_time --device cuda:0
    python -m benchmarks.models.compile_time --smoke

Six recurrent layers stand between the blocks of a model, each two linear layers, a GELU and a layer norm.
With and without them in turns, the model is compiled and takes a step, forward and backward, with the caches
of Inductor and Dynamo empty: wall-clock and processor seconds until the step is done, and their ratio. What
is compiled once a machine, such as Triton's kernels of ours, is there by a call outside of torch.compile
beforehand, and a first turn, in which Inductor starts, is not counted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import selector
from benchmarks.common.arguments import add_result_arguments, result_folder
from benchmarks.common.result import write_result
from kernel_selector.kernels.measure import default_torch_device, identify

LAYERS, FEATURES, BATCH, SEQ = 6, 256, 16, 32
OPERATORS = {"lstm": selector.nn.LSTM, "gru": selector.nn.GRU}
ON_GPU, ON_CPU = "fused", "hoisted"


class Stack(nn.Module):
    """Blocks of linear layers, with a recurrent layer behind each or none: x [T, B, features] to the same."""

    def __init__(self, count: int, make: Callable[[], nn.Module] | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_block() for _ in range(count))
        self.layers = nn.ModuleList(make() for _ in range(count) if make)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of the last layer."""
        for at, block in enumerate(self.blocks):
            x = x + block(x)
            if self.layers:
                x = self.layers[at](x)[0]
        return x


def _block() -> nn.Module:
    wide = 4 * FEATURES
    return nn.Sequential(
        nn.LayerNorm(FEATURES), nn.Linear(FEATURES, wide), nn.GELU(), nn.Linear(wide, FEATURES)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    options = _parser().parse_args(arguments)
    torch_device = "cpu" if options.smoke else options.device or default_torch_device()
    folder = result_folder(options, "compile")
    count, turns = (1, 1) if options.smoke else (LAYERS, options.turns)
    rows = []
    for operator, layer in OPERATORS.items():
        name = ON_CPU if torch_device == "cpu" else ON_GPU
        make = partial(layer, FEATURES, FEATURES, implementation=name)
        found = _row(make, count, turns, torch_device)
        rows.append({"operator": operator, "implementation": name, **found})
        print(_words(rows[-1]), flush=True)
    title = f"compile_time_{identify(torch_device).key}"
    payload = {"layers": count, "rows": rows}
    print(write_result(title, payload, torch_device=torch_device, commit=options.commit, folder=folder))
    return 0


def _row(make: Callable[[], nn.Module], count: int, turns: int, torch_device: str) -> dict[str, Any]:
    dtype = torch.float32 if torch_device == "cpu" else torch.bfloat16
    x = torch.randn(SEQ, BATCH, FEATURES, device=torch_device, dtype=dtype)
    models = [Stack(count, one).to(torch_device, dtype) for one in (None, make)]
    took: list[list[tuple[float, float]]] = [[], []]
    for model in models:
        model(x).sum().backward()
    for turn in range(turns + 1):
        for model, one in zip(models, took, strict=True):
            seconds = compiled_in(model, x)
            if turn:
                one.append(seconds)
    ratios = [[ours[at] / without[at] for without, ours in zip(*took, strict=True)] for at in (0, 1)]
    return {
        "seconds": [round(median(wall for wall, _ in one), 3) for one in took],
        "processor_seconds": [round(median(processor for _, processor in one), 3) for one in took],
        "ratio": round(median(ratios[0]), 3),
        "processor_ratio": round(median(ratios[1]), 3),
        "turns": turns,
    }


def compiled_in(model: nn.Module, x: Tensor) -> tuple[float, float]:
    """Wall-clock and processor seconds until a model is compiled and has taken a step."""
    torch.compiler.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        wall, processor = time.perf_counter(), time.process_time()
        torch.compile(model)(x).sum().backward()
        if x.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - wall, time.process_time() - processor


def _words(row: dict[str, Any]) -> str:
    without, ours = row["seconds"]
    return (
        f"{row['operator']} {row['implementation']}: {ours:.1f} s, without them {without:.1f} s, "
        f"{row['ratio']:.2f} times as long ({row['processor_ratio']:.2f} of the processor)"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", help="cpu or cuda:0 (default: the GPU if there is one)")
    parser.add_argument("--turns", type=int, default=3, help="of each model (default: %(default)s)")
    add_result_arguments(parser, smoke="one layer on the CPU")
    return parser


if __name__ == "__main__":
    sys.exit(main())
