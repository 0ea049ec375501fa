"""One layer of BERT-large, forward and backward: bytes that it keeps for each token, and milliseconds.

    python -m benchmarks.kernels.bert_layer --device cuda:0 --budget 3m --commit HASH
    python -m benchmarks.kernels.bert_layer --smoke

Compared are torch's layer as it is written, compiled, by the default and with autotuning, compiled with less
and less memory for the partitioner, and layers of our implementations. Each of ours is judged first: outputs
and all gradients against the layer in float64, with nothing dropped, by the gate's own tolerances. Then bytes
are counted, and at last all are timed in turns: launched by the host, the same on the device alone (launched
while it still pauses), and as CUDA graphs. Ratios are of times on the device. Bytes leave out the layer's
input and output, which its neighbours keep. Writes `bert_layer_<device>.json`. Needs torch and the standard
library alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.common.arguments import add_result_arguments, result_folder
from benchmarks.common.result import versions_of, write_result
from benchmarks.kernels._bert_layer import Sizes, Variant, of_ours, torchs_own
from benchmarks.kernels._bert_run import Run, ratios
from kernel_selector.kernels.measure import default_torch_device, identify
from kernel_selector.kernels.measure.sweeps import parse_seconds

BUDGETS = (0.999, 0.9, 0.7, 0.5, 0.3)
SMALL = Sizes(batch=2, seq=5, hidden=64, heads=2, inner=128)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write. The exit code: 0, 1 where one of ours failed, 3 where time was too short."""
    options = _parser().parse_args(arguments)
    folder = result_folder(options, "bert")
    torch_device = "cpu" if options.smoke else options.device or default_torch_device()
    start, device = time.monotonic(), identify(torch_device)
    end = start + parse_seconds(options.budget)
    layers: list[dict[str, Any]] = []
    sizes = [SMALL] if options.smoke else [Sizes(batch=batch) for batch in options.batch]
    for index, one in enumerate(sizes):
        variants: list[Variant] = [*torchs_own(tuple(options.compile_budgets)), *of_ours(one, device)]
        share = start + (end - start) * (index + 1) / len(sizes)
        run = Run(one, torch_device, l2_bytes=device.l2_bytes or 2**25, seed=options.seed)
        lines = ratios(run.measure(variants, end=share))
        print(f"batch {one.batch}, seq {one.seq}:", *map(_line, lines), sep="\n", flush=True)
        layers.append({"sizes": asdict(one), "variants": lines})
        payload = {
            "torch_device": torch_device,
            "seed": options.seed,
            "seconds": round(time.monotonic() - start, 1),
            "layers": layers,
            "versions": versions_of(
                f"{operator}.{name}"
                for layer in layers
                for line in layer["variants"]
                for operator, name in line["parts"].items()
            ),
        }
        # after each size: whatever ends the program leaves what was measured until then
        name = f"bert_layer_{device.key}"
        print(write_result(name, payload, torch_device=torch_device, commit=options.commit, folder=folder))
    statuses = {line["status"] for layer in layers for line in layer["variants"]}
    return 3 if "not measured" in statuses else int(bool(statuses & {"incorrect", "crashed"}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--device", help="cpu or cuda:0 (default: the GPU if there is one)")
    add("--budget", default="3m", help="prepare no variant after this time (default: 3m)")
    add("--batch", type=int, nargs="+", default=[16, 32], help="sequences at once (default: 16 32)")
    add("--compile-budgets", type=float, nargs="*", default=BUDGETS, help="activation_memory_budget to try")
    add_result_arguments(parser, smoke="a tiny layer on the CPU", seed="inputs and parameters")
    return parser


def _line(line: dict[str, Any]) -> str:
    """A variant with its figures, or why it has none."""
    if line["status"] != "ok":
        return f"  {line['name']}: {line['status']}, {line['reason']}"
    shown = (
        "bytes_per_token",
        "allocated_per_token",
        "ms",
        "device_ms",
        "graph_ms",
        "bytes_ratio",
        "time_ratio",
        "error_ratio",
    )
    return f"  {line['name']}: " + ", ".join(
        f"{name} {line[name]}" for name in shown if line.get(name) is not None
    )


if __name__ == "__main__":
    sys.exit(main())
