"""Tuning a matrix product: the model's shortlist of 8 against the whole space, and torch's autotuning.

    python -m benchmarks.kernels.schedules --shard 1/4 --device cuda:0 --commit HASH  (and 2/4 on cuda:1, ...)
    python -m benchmarks.kernels.schedules --join nvidia-h200
    python -m benchmarks.kernels.schedules --replay nvidia-h200
    python -m benchmarks.kernels.schedules --smoke

For each product the shortlist is tuned, as `python -m kernels.matmul.tune` does, then the whole space;
the schedule that the first one chose and the best few of the second are timed again, in turns. The figure
is the chosen one's share of the best one's speed. What tuning took is the time in which the GPU ran
something, by the profiler, with all kernels compiled; compilation is counted apart. Last comes, for each
product in a process of its own with empty caches, the first call of torch.compile with autotuning.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from math import gcd
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.arguments import add_result_arguments, result_folder
from benchmarks.common.comparison import parse_shard
from benchmarks.common.figures import geometric_mean, rounded
from benchmarks.common.result import read_result, versions_of, write_result
from benchmarks.common.rows import Goal
from benchmarks.kernels import _schedule_runs
from benchmarks.kernels._schedule_runs import SHORTLIST, Effort, Product, autotuned, compiled, tuned
from kernel_selector.kernels.matmul.launch import ALIGN
from kernel_selector.kernels.matmul.limits import Limits
from kernel_selector.kernels.matmul.ranking import Size, shortlist
from kernel_selector.kernels.measure import identify
from kernel_selector.kernels.measure.sweeps import parse_seconds

# Families of products that differ in sizes alone share their compiled kernels: a shard is a whole family.
PRODUCTS = (
    ("4096x4096x5120", "2048x8192x2048", "8192x1024x4096", "16384x3072x768"),
    ("64x4096x1024", "64x1024x4096", "16x5120x4096", "32x8192x1024"),
    ("345x789x1000", "1531x2557x1021"),
    ("4096x1280x4096:float16", "768x30522x1024:float16"),
)
SMOKE = (("4x17x20:float32",),)
SMOKE_EFFORT = Effort(1, 1, 2)
# CPU seconds, mean of seven such kernels with Triton 3.9 on a Xeon: only for telling how long it will take
SECONDS_A_KERNEL = 4.6
GOALS = (
    Goal("share", 0.97, 0.99),
    Goal("share_worst_decile", 0.92, 0.97),
    Goal("gpu_time_of_whole", 20, 50),
    Goal("gpu_time_of_autotuning", 10, 20),
)
METHOD = (
    "share is the best schedule's time over that of the chosen one, both timed again in turns.",
    "gpu_ms is the time in which the GPU ran kernels or copies, by the profiler, with everything compiled; "
    "gpu_time_ figures are ratios of it to that of the shortlist.",
    "compile_s adds up the seconds that one process took for each schedule, its first run included.",
    "Autotuning is the first call of a @ b by torch.compile(mode='max-autotune-no-cudagraphs') in a new "
    "process with empty caches; wall_s includes its compilation.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure a shard, or join what is measured. The exit code: 0, or 3 where autotuning ran out of time."""
    options = _parser().parse_args(arguments)
    if options.smoke:
        os.environ |= {"TRITON_INTERPRET": "1", "TRITON_DEFAULT_FP_FUSION": "1"}
    folder = result_folder(options, "schedules")
    if options.join:
        return _join(folder, options.join)
    if options.replay:
        return _replay(folder, options.replay)
    _see_only(options.device)
    device = "cpu" if options.smoke else "cuda"
    effort = SMOKE_EFFORT if options.smoke else Effort()
    end = time.monotonic() + parse_seconds(options.budget)
    families = SMOKE if options.smoke else PRODUCTS
    index, count = options.shard or (1, 1)
    chosen = [text for family in families[index - 1 :: count] for text in family]
    seconds = _compile(chosen, device, options.processes, effort.most)
    name = f"schedules_{identify(device).key}" + (f".{index}-of-{count}" if options.shard else "")
    records = []
    for text in chosen:
        product = Product.of(text, device)
        records.append({"product": text, **tuned(product, seconds, effort)})
        _store(folder, name, device, records, options.commit)
        print(_words(records[-1]), file=sys.stderr, flush=True)
    left = 0 if options.smoke else _autotune(records, end)
    path = _store(folder, name, device, records, options.commit)
    print(*_lines(records), path, sep="\n")
    return 3 if left else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--device", default="cuda:0", help="which GPU (default: cuda:0)")
    add("--budget", default="4m", help="start no autotuning later (default: 4m)")
    add("--shard", type=parse_shard, metavar="i/n", help="every n-th family of products, from the i-th on")
    add("--processes", type=int, default=len(os.sched_getaffinity(0)), help="that compile (default: cores)")
    add("--join", metavar="DEVICE", help="put all files of a device (nvidia-h200) together, and stop")
    add("--replay", metavar="DEVICE", help="judge the ranking as it is now by a result's times, and stop")
    add_result_arguments(parser, smoke="tiny products in Triton's interpreter", verb="store")
    return parser


def _see_only(device: str) -> None:
    """Have this process and those that it starts use one GPU. Raises ValueError for what is none."""
    kind, _, index = device.partition(":")
    if kind != "cuda" or not (index or "0").isdigit():
        raise ValueError(f"--device {device}: expected cuda, cuda:0, cuda:1, and so on")
    visible = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[int(index or 0)] if visible else index or "0"


def _compile(texts: Sequence[str], device: str, processes: int, most: int | None) -> dict[str, float]:
    sizes = [Product.of(text, device).size for text in texts]
    names = {str(one) for size in sizes for one in _schedule_runs.usable(size, torch.device(device), most)}
    expected = len(names) * SECONDS_A_KERNEL / processes
    print(
        f"{len(texts)} products, {len(names)} schedules: about {expected:.0f} s of compilation in "
        f"{processes} processes if all products share their kernels",
        file=sys.stderr,
    )
    start = time.monotonic()
    seconds = compiled(texts, processes, most)
    print(f"Compiled in {time.monotonic() - start:.0f} s.", file=sys.stderr, flush=True)
    return seconds


def _autotune(records: list[dict[str, Any]], end: float) -> int:
    """Torch's autotuning of the products while there is time; how many are left."""
    for count, record in enumerate(records):
        if time.monotonic() > end:
            return len(records) - count
        record["autotuning"] = autotuned(record["product"], "cuda")
        print(f"{record['product']}: autotuning {record['autotuning']}", file=sys.stderr, flush=True)
    return 0


def figures(record: Mapping[str, Any]) -> dict[str, float]:
    """A product's figures: see METHOD."""
    listed, whole, p50_ms = record["shortlist"], record["whole"], record["p50_ms"]
    found = {
        "share": rounded(p50_ms[record["best"]] / p50_ms[record["chosen"]]),
        "cublas_share": rounded(record["cublas_ms"] / p50_ms[record["chosen"]]),
        "gpu_time_of_whole": rounded(whole["gpu_ms"] / listed["gpu_ms"]),
        "wall_time_of_whole": rounded(
            (whole["wall_s"] + whole["compile_s"]) / (listed["wall_s"] + listed["compile_s"])
        ),
    }
    torchs = record.get("autotuning", {})
    if torchs.get("status") == "ok":
        found["gpu_time_of_autotuning"] = rounded(torchs["gpu_ms"] / listed["gpu_ms"])
    return found


def summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric means over products, the worst decile and the worst of the shares, the goals."""
    every = [figures(record) for record in records]
    names = dict.fromkeys(name for one in every for name in one)
    found = {name: geometric_mean(one.get(name) for one in every) for name in names}
    shares = sorted(one["share"] for one in every)
    found["share_worst"] = shares[0]
    if len(shares) > 1:
        found["share_worst_decile"] = rounded(statistics.quantiles(shares, n=10, method="inclusive")[0])
    goals = [
        {
            "figure": goal.figure, "least": goal.least, "aim": goal.aim, "value": found.get(goal.figure),
            "verdict": goal.verdict(found.get(goal.figure)),
        }
        for goal in GOALS
    ]  # fmt: skip
    return {"products": len(records), "figures": found, "goals": goals}


def _store(
    folder: Path, name: str, device: str, records: Sequence[Mapping[str, Any]], commit: str | None
) -> Path:
    lines = [json.dumps({**record, "figures": figures(record)}, allow_nan=False) for record in records]
    # of the implementation that runs them
    versions = versions_of(["linear.scheduled"])
    payload = {"method": METHOD, "summary": summary(records), "versions": versions}
    return write_result(name, payload, torch_device=device, commit=commit, lines=lines, folder=folder)


def _join(folder: Path, key: str) -> int:
    files = sorted(folder.glob(f"schedules_{key}.*-of-*.json"))
    if not files:
        print(f"{folder} has no shard of {key}.", file=sys.stderr)
        return 2
    results = [json.loads(file.read_text()) for file in files]
    records = [record for result in results for record in result.pop("records")]
    about = {**results[0], "summary": summary(records)}
    name = f"schedules_{key}"
    lines = [json.dumps(record, allow_nan=False) for record in records]
    path = write_result(
        name, {**about, "name": name}, torch_device="cpu", commit=about["commit"], lines=lines, folder=folder
    )
    for file in files:
        file.unlink()
    print(*_lines(records), path, sep="\n")
    return 0


def _replay(folder: Path, key: str) -> int:
    files = list(folder.glob(f"schedules_{key}.json*"))  # packed or not
    if not files:
        print(
            f"{folder}/schedules_{key}.json is not there: measure first, without --replay.", file=sys.stderr
        )
        return 2
    shares = {record["product"]: replayed(record) for record in read_result(files[0])["records"]}
    for product, share in shares.items():
        print(f"{product}: {share:.4f}")
    print(f"geometric mean {geometric_mean(shares.values())}, worst {min(shares.values()):.4f}")
    return 0


def replayed(record: Mapping[str, Any], limits: Limits | None = None) -> float:
    """The share of the best speed that the shortlist of today's ranking has, by a record's times.

    `limits` are of the GPU of the record, an H200's unless told. The times are those of tuning: nothing is
    timed again.
    """
    times = {one["schedule"]: one["p50_ms"] for one in record["whole"]["records"] if one["status"] == "ok"}
    any_one = record["whole"]["records"][0]
    depth, element_bytes = any_one["depth"], getattr(torch, any_one["dtype"]).itemsize
    bulk = depth * element_bytes % 16 == 0
    size = Size(any_one["rows"], any_one["columns"], depth, element_bytes, 1, bulk, (gcd(depth, ALIGN),) * 2)
    listed = [str(one) for one in shortlist(size, limits or Limits(), SHORTLIST)]
    return float(min(times.values()) / min(times[one] for one in listed if one in times))


def _words(record: Mapping[str, Any]) -> str:
    found = ", ".join(f"{name} {value}" for name, value in figures(record).items())
    return f"{record['product']}: {record['chosen']} chosen, {record['best']} best; {found}"


def _lines(records: Sequence[Mapping[str, Any]]) -> list[str]:
    line = summary(records)
    return [
        ", ".join(f"{name} {value}" for name, value in line["figures"].items()),
        *(
            f"    {goal['figure']} {goal['value']}: at least {goal['least']}, aim {goal['aim']}: "
            f"{goal['verdict']}"
            for goal in line["goals"]
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
