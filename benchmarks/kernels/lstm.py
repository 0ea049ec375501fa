"""All LSTM implementations side by side.

    python -m benchmarks.kernels.lstm [--device cuda:0] [--policy quick]

A fixed list of problems, of which each has something to say about where time goes; every implementation
but the compiled loop, which takes minutes to be made, is judged against the equations in float64 first and
timed in turns with the others. Prints each one's time, its time as a CUDA graph, the memory that it holds for
backward, and how many times as fast as `nn.LSTM` it is; writes all records to
`benchmarks/results/lstm_<device>.json`. Needs torch and the standard library alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.common.arguments import add_result_arguments, result_folder
from benchmarks.common.result import write_result
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Record, Timing
from kernel_selector.kernels.measure import Session, default_torch_device, policy
from kernel_selector.kernels.measure.sweeps import parse_seconds

OPERATOR = registry.operator("lstm")
DEFAULT = OPERATOR.default
NAMES = tuple(name for name in registry.implementations("lstm") if name != "torch_compile")  # takes minutes
RAW_SAMPLES = 40  # kept of each timing: percentiles are of all
TIMINGS = ("forward", "forward_backward", "graph_forward", "graph_forward_backward")
COLUMNS = ("implementation", "time ms", "p20 to p80 ms", "graph ms", "held MiB", "x nn.LSTM")

# seq is 50, one layer, training and float32 unless said; what a budget cuts off is at the end
SMALL = {"hidden": 8, "batch": 2, "seq": 3}
CPU = [
    # training and inference over a sequence
    *({"hidden": hidden, "batch": 16} for hidden in (128, 256, 512)),
    *({"hidden": hidden, "batch": 16, "mode": "inference"} for hidden in (128, 512)),
    # one sequence, and many
    *({"hidden": 256, "batch": batch} for batch in (1, 64)),
    # single steps, as in decoding
    *({"hidden": 256, "batch": batch, "seq": 1, "mode": "inference"} for batch in (1, 16, 64)),
    {"hidden": 1024, "batch": 1, "seq": 1, "mode": "inference"},
    # stacked
    *({"hidden": 256, "batch": 16, "layers": 2, "mode": mode} for mode in ("training", "inference")),
]
CUDA = [
    # training and inference over a sequence
    *({"hidden": hidden, "batch": 64, "dtype": "float16"} for hidden in (128, 256, 512, 1024, 2048)),
    *(
        {"hidden": hidden, "batch": batch, "dtype": "float16", "mode": "inference"}
        for hidden in (256, 1024)
        for batch in (1, 64)
    ),
    # other dtypes
    *({"hidden": hidden, "batch": 64, "dtype": "bfloat16"} for hidden in (512, 1024)),
    *({"hidden": hidden, "batch": 64, "dtype": "float32"} for hidden in (256, 1024)),
    # one sequence, and many
    *({"hidden": 512, "batch": batch, "dtype": "float16"} for batch in (1, 16, 256)),
    # single steps, as in decoding
    *(
        {"hidden": hidden, "batch": batch, "seq": 1, "dtype": "float16", "mode": "inference"}
        for hidden in (512, 2048)
        for batch in (1, 64)
    ),
    # stacked
    *(
        {"hidden": 512, "batch": 64, "layers": 2, "dtype": "float16", "mode": mode}
        for mode in ("training", "inference")
    ),
    {"hidden": 2048, "batch": 256, "dtype": "bfloat16"},
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write. The exit code: 0, or 3 where the budget left some out."""
    options = _parser().parse_args(arguments)
    chosen = policy(options.policy)
    device = "cpu" if options.smoke else options.device or default_torch_device()
    folder = result_folder(options, "lstm")
    budget_s = parse_seconds(options.budget)
    listed = [SMALL] if options.smoke else CPU if device == "cpu" else CUDA
    problems = [OPERATOR.problem(given) for given in listed]
    start = time.monotonic()
    lines: list[str] = []
    measured = 0
    with Session(device, policy=chosen, seed=options.seed) as session:
        for problem in problems:
            if time.monotonic() - start > budget_s:
                break
            records = list(session.measure(problem, NAMES))
            print(f"\n{problem.key}", *_table(records), sep="\n", flush=True)
            lines += [_line(record) for record in records]
            measured += 1
        payload = {
            "torch_device": device,
            "policy": chosen.name,
            "seed": options.seed,
            "problems": measured,
            "problems_left_out": len(problems) - measured,
            "seconds": round(time.monotonic() - start, 1),
        }
        name = f"lstm_{session.device.key}"
    if payload["problems_left_out"]:
        print(f"\nThe budget is spent: {payload['problems_left_out']} problems are left out.")
    where = {"torch_device": device, "commit": options.commit, "folder": folder}
    print(write_result(name, payload, lines=lines, **where))
    return 3 if payload["problems_left_out"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", help="cpu or cuda:0 (default: the GPU if there is one)")
    parser.add_argument("--policy", default="thorough", help="quick or thorough (default: thorough)")
    parser.add_argument("--budget", default="5m", help="start no problem after this time (default: 5m)")
    add_result_arguments(parser, smoke="one tiny problem", seed="inputs and parameters")
    return parser


def _table(records: list[Record]) -> Iterator[str]:
    """One line an implementation, the fastest first, those without a time last."""
    yield _row(*COLUMNS)
    default = next((record.total for record in records if record.implementation == DEFAULT), None)
    for record in sorted(records, key=lambda one: one.total.p50_ms if one.total else float("inf")):
        total, graph = record.total, _graph(record)
        if total is None:
            yield f"{record.implementation:24} {record.status.value}: {record.reason}"
            continue
        yield _row(
            record.implementation,
            f"{total.p50_ms:.4g}",
            f"{total.p20_ms:.4g} to {total.p80_ms:.4g}",
            f"{graph.p50_ms:.4g}" if graph else "-",
            f"{record.memory.held_bytes / 2**20:.2f}" if record.memory else "-",
            f"{default.p50_ms / total.p50_ms:.2f}" if default else "-",
        )


def _row(implementation: str, *figures: str) -> str:
    return f"{implementation:24}" + "".join(f"{figure:>20}" for figure in figures)


def _graph(record: Record) -> Timing | None:
    return record.graph_forward_backward if record.problem["mode"] == "training" else record.graph_forward


def _line(record: Record) -> str:
    """The record as JSON, with some of its raw times."""
    thinned = {
        name: replace(timing, raw_ms=tuple(timing.raw_ms[:: -(-len(timing.raw_ms) // RAW_SAMPLES)]))
        for name in TIMINGS
        if (timing := getattr(record, name)) is not None
    }
    return replace(record, **thinned).to_json()


if __name__ == "__main__":
    sys.exit(main())
