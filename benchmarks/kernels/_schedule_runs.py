"""One product's schedules: the whole space against the model's shortlist, and torch's autotuning.

The programs that `benchmarks.kernels.schedules` starts are here too: one that compiles, one that autotunes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from kernel_selector.kernels.matmul.limits import limits_here
from kernel_selector.kernels.matmul.ranking import Size, ranked, shortlist
from kernel_selector.kernels.matmul.schedule import Schedule, parse
from kernel_selector.kernels.matmul.tune import Product, judged, measured, on, times

ROOT = Path(__file__).resolve().parents[2]
SHORTLIST = 8
FINALISTS = 5  # of the whole space, which are timed again beside the chosen one
SECONDS = r"([\d.]+) seconds"
Result = TypeVar("Result")
AUTOTUNED = re.compile(rf"AUTOTUNE benchmarking takes {SECONDS} and {SECONDS} precompiling for (\d+) choices")


class Effort(NamedTuple):
    """Rounds of timing for each schedule, in tuning and in the end, and the most schedules: None for all."""

    rounds: int = 9
    final_rounds: int = 41
    most: int | None = None


def usable(size: Size, device: torch.device, most: int | None = None) -> tuple[Schedule, ...]:
    """The schedules that can compute a product: all of the space, or so many of the first."""
    return ranked(size, limits_here(device))[:most]


def compiled(texts: Sequence[str], processes: int, most: int | None) -> dict[str, float]:
    """Have every schedule of the products compiled; the seconds that each took one process, by its text.

    Processes share out the schedules, and each goes through all products with one of its own: products
    that differ in size alone share its kernel, and the first of them pays.
    """
    command = [sys.executable, "-m", __name__, "compile", str(most or 0), str(processes), *texts]
    running = [
        subprocess.Popen(
            [*command[:4], str(index), *command[4:]], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for index in range(processes)
    ]
    seconds: dict[str, float] = {}
    for process in running:
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"a compiling process ended with {process.returncode}: see its message above")
        for line in output.splitlines():
            seconds |= json.loads(line)
    return seconds


def tuned(product: Product, seconds: dict[str, float], effort: Effort) -> dict[str, Any]:
    """The record of a product whose schedules are compiled: what tuning took, and what it came to."""
    device = product.a.device
    space = usable(product.size, device, effort.most)
    few = tuple(one for one in shortlist(product.size, limits_here(device), SHORTLIST) if one in space)
    tune = partial(measured, product, rounds=effort.rounds, beside_cublas=False)
    list(tune(few[:1]))  # what the first run of a process takes is no part of tuning
    listed, whole = (_costed(partial(tune, order), seconds) for order in (few, space))
    chosen = _fastest(listed["records"])[0]
    finalists = dict.fromkeys((chosen, *_fastest(whole["records"])[:FINALISTS]))
    runs = {name: on(product, parse(name)) for name in finalists}
    last = times({"cublas": partial(torch.mm, product.a, product.b), **runs}, effort.final_rounds, device)
    p50_ms = {name: sorted(found)[len(found) // 2] for name, found in last.items()}
    cublas_ms = p50_ms.pop("cublas")
    return {
        "chosen": chosen,
        "best": min(p50_ms, key=lambda name: p50_ms[name]),
        "p50_ms": p50_ms,
        "cublas_ms": cublas_ms,
        "best_rank": 1 + [str(one) for one in space].index(_fastest(whole["records"])[0]),
        "shortlist": listed,
        "whole": whole,
    }


def autotuned(text: str, device: str) -> dict[str, Any]:
    """Cost of torch.compile's autotuning of a product with cold caches, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {f"{name}_CACHE_DIR": f"{folder}/{name}" for name in ("TORCHINDUCTOR", "TRITON")}
        done = subprocess.run(
            [sys.executable, "-m", __name__, "autotune", text, device],
            cwd=ROOT, env={**os.environ, **caches}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        return {"status": "crashed", "reason": done.stderr.strip().rpartition("\n")[2]}
    found: dict[str, Any] = {"status": "ok", **json.loads(done.stdout.splitlines()[-1])}
    if line := AUTOTUNED.search(done.stderr):
        found |= {
            "benchmarking_s": float(line[1]),
            "precompiling_s": float(line[2]),
            "choices": int(line[3]),
        }
    return found


def _costed(tune: Callable[[], Iterator[dict[str, Any]]], seconds: dict[str, float]) -> dict[str, Any]:
    """The records of a tuning, and what it took of the GPU, of the clock, and of compilers."""
    records, gpu_ms, wall_s = busy(lambda: list(tune()))
    names = [record["schedule"] for record in records]
    return {
        "schedules": len(names),
        "gpu_ms": gpu_ms,
        "wall_s": wall_s,
        "compile_s": sum(seconds[name] for name in names),
        "records": records,
    }


def busy(call: Callable[[], Result]) -> tuple[Result, float, float]:
    """A call's result; milliseconds in which the GPU ran its kernels and copies; seconds by the clock.

    Without a GPU the two are the same time.
    """
    start = time.perf_counter()
    if not torch.cuda.is_available():
        result = call()
        wall_s = time.perf_counter() - start
        return result, wall_s * 1e3, wall_s
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        start = time.perf_counter()
        result = call()
        torch.cuda.synchronize()
        wall_s = time.perf_counter() - start
    on_gpu = torch.autograd.DeviceType.CUDA
    events = [event for event in profile.events() or () if event.device_type == on_gpu]
    micros = sum(event.self_device_time_total for event in events if not event.is_user_annotation)
    return result, micros / 1e3, wall_s


def _fastest(records: Sequence[dict[str, Any]]) -> list[str]:
    """The schedules that were right, fastest first."""
    right = [record for record in records if record["status"] == "ok"]
    if not right:
        raise RuntimeError(f"no schedule was right: {records[:3]}")
    return [record["schedule"] for record in sorted(right, key=lambda record: float(record["p50_ms"]))]


def _compile(index: int, most: int, processes: int, texts: Sequence[str]) -> None:
    """Run every `processes`-th schedule on each product once; print the seconds of its longest first run."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    products = [Product.of(text, device) for text in texts]
    taken: dict[str, list[Product]] = {}
    for product in products:
        for one in usable(product.size, product.a.device, most or None):
            taken.setdefault(str(one), []).append(product)
    for name, users in list(taken.items())[index::processes]:
        longest = 0.0
        for product in users:
            start = time.perf_counter()
            judged(product, name, on(product, parse(name)))
            longest = max(longest, time.perf_counter() - start)
        print(json.dumps({name: round(longest, 3)}), flush=True)


def _autotune(text: str, device: str) -> None:
    """Compile a product with autotuning; print what the first call took of the GPU and of the clock."""
    product = Product.of(text, device)
    torch.mm(product.a, product.b)  # the libraries' own start is no part of it
    call = torch.compile(lambda a, b: a @ b, mode="max-autotune-no-cudagraphs")
    _, gpu_ms, wall_s = busy(lambda: call(product.a, product.b))
    print(json.dumps({"gpu_ms": gpu_ms, "wall_s": wall_s}))


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        _compile(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
    else:
        _autotune(sys.argv[2], sys.argv[3])
