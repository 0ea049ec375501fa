"""Measures the schedules of products on this machine's GPU: python -m kernels.matmul.tune 64x4096x1024 ...

A product is MxNxK, with `:float16` or another dtype behind it (default bfloat16). For each one the schedules
on the model's shortlist are judged against a product in float64 of some rows and timed beside cuBLAS,
all in turns, as CUDA graphs: launches take longer than small products do. Standard output has a line of
JSON for each schedule, and then the lines of `tuned_table.TABLE`: a schedule takes effect, and gives the
implementations another version, when its line is pasted there.

    --best 8     how many of the shortlist are measured: the records' first ranks
    --all        the whole space, to know what the ranking misses
    --rounds 9   how often each is timed; the median counts
    --processes 1    how many compile at once, ahead of timing
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import gcd
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..contract.errors import first_words
from ..measure.clock import Clock, EventClock, HostClock
from ..measure.environment import current_environment
from ..measure.graphs import capture
from ..measure.workload import Mark
from .launch import ALIGN, _name, matmul
from .limits import limits_here
from .ranking import Size, estimate_us, ranked, shortlist
from .schedule import Schedule

L2_BYTES = 2**26  # twice as much is written before each run: weights and inputs are cold
JUDGED_ROWS = 64
# of the result's root mean square; rounding of 16-bit results is 1e-3 to 2e-3, a missing step 1e-1
MOST_ERROR = {torch.float32: 5e-3, torch.float16: 4e-3, torch.bfloat16: 1e-2}


Call = Callable[[], Tensor]


class Product(NamedTuple):
    """Matrices a [M, K] and b [K, N] as a layer has them: rows of x, and a weight [N, K] transposed."""

    size: Size
    a: Tensor
    b: Tensor
    expected: Tensor  # [rows, N], float64: the first and the last rows of the product
    rows: Tensor

    @classmethod
    def of(cls, text: str, device: str = "cuda") -> Product:
        """The product of such a text, `MxNxK:dtype`, on a torch device. Raises ValueError."""
        sizes, _, name = text.partition(":")
        dtype = getattr(torch, name or "bfloat16", None)
        try:
            m, n, k = (int(size) for size in sizes.split("x"))
        except ValueError:
            raise ValueError(f"{text!r}: expected MxNxK, such as 64x4096x1024:float16") from None
        if dtype not in MOST_ERROR or min(m, n, k) < 1:
            raise ValueError(f"{text!r}: expected sizes from 1, and one of float32, float16, bfloat16")
        generator = torch.Generator(device).manual_seed(0)
        a = torch.randn(m, k, device=device, generator=generator).to(dtype)
        b = (torch.randn(n, k, device=device, generator=generator) * k**-0.5).to(dtype).t()
        half = min(m, JUDGED_ROWS) // 2 + 1
        rows = torch.unique(torch.cat((torch.arange(half), torch.arange(m - half, m).clamp(min=0))))
        rows = rows.to(device)
        bulk = k * dtype.itemsize % 16 == 0
        size = Size(m, n, k, dtype.itemsize, 1, bulk, (gcd(k, ALIGN),) * 2)
        return cls(size, a, b, a[rows].double() @ b.double(), rows)

    def error(self, c: Tensor) -> float:
        """The error of a product, RMS over RMS."""
        wrong = c[self.rows].double() - self.expected
        return float(wrong.square().mean().sqrt() / self.expected.square().mean().sqrt())


def main(arguments: list[str]) -> int:
    """Measure, print records and the table's lines. Returns 1 where a schedule computed something wrong."""
    given = _parser().parse_args(arguments)
    if given.processes > 1:
        _compile_in_other_processes(arguments, given.processes)
    products = [Product.of(text) for text in given.products]
    about = {"device": _name(torch.device("cuda:0")), "environment": asdict(current_environment("cuda:0"))}
    lines, failed = [f"# {about['device']}"], False
    for product in products:
        limits = limits_here(product.a.device)
        best = shortlist(product.size, limits, given.best)
        order = (*best, *(one for one in ranked(product.size, limits) if given.all and one not in best))
        if given.share:
            first, of = given.share
            for one in order[first::of]:
                judged(product, str(one), on(product, one))
            continue
        records = list(measured(product, order, given.rounds))
        for record in records:
            print(json.dumps(record | about), flush=True)
        failed |= any(record["status"] == "incorrect" for record in records)
        lines += _summary(product, records, given.best)
    if not given.share:
        print("\n".join(lines), file=sys.stderr)
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    assert __doc__
    parser = argparse.ArgumentParser("python -m kernels.matmul.tune", description=__doc__.partition("\n")[0])
    parser.add_argument("products", nargs="+", help="MxNxK, or MxNxK:dtype")
    parser.add_argument("--best", type=int, default=8, help="schedules of the shortlist that are measured")
    parser.add_argument("--all", action="store_true", help="measure the whole space")
    parser.add_argument("--rounds", type=int, default=9, help="how often each is timed")
    parser.add_argument("--processes", type=int, default=1, help="how many compile at once, ahead of timing")
    parser.add_argument("--share", type=int, nargs=2, help=argparse.SUPPRESS)  # of one of these processes
    return parser


def _compile_in_other_processes(arguments: list[str], count: int) -> None:
    """Run each schedule once, in processes that share them out: compiled code stays in Triton's cache."""
    command = [sys.executable, "-m", __spec__.name, *arguments, "--processes", "1"]
    running = [
        subprocess.Popen([*command, "--share", str(first), str(count)], stdout=subprocess.DEVNULL)
        for first in range(count)
    ]
    for process in running:
        process.wait()


def _summary(product: Product, records: list[dict[str, Any]], count: int) -> list[str]:
    """The table's line, and above it how the schedules compare with cuBLAS and with each other."""
    timed = {record["schedule"]: record for record in records if record["status"] == "ok"}
    cublas = timed.pop("cublas", None)
    if not timed:
        return [f"    # {product.size}: no schedule was right"]
    fastest = min(timed.values(), key=lambda record: float(record["p50_ms"]))
    text = f"    # {fastest['p50_ms'] * 1e3:.1f} us"
    if cublas is not None:
        text += f", {cublas['p50_ms'] / fastest['p50_ms']:.2f} times as fast as cuBLAS"
    first = [record["p50_ms"] for record in timed.values() if record["rank"] <= count]
    if first and len(timed) > count:
        share = fastest["p50_ms"] / min(first)
        text += f"; the first {count} have {share:.3f} of the rate of all {len(timed)}"
    return [text, f"    {_key(product.size)}: {fastest['schedule']!r},"]


def _key(size: Size) -> tuple[int, int, int, int, bool, bool]:
    return (size.rows, size.columns, size.depth, size.element_bytes, size.batch > 1, size.bulk)


def on(product: Product, schedule: Schedule) -> Call:
    """The product on a schedule."""
    return partial(matmul, product.a, product.b, schedule=schedule)


def measured(
    product: Product, order: Sequence[Schedule], rounds: int, *, beside_cublas: bool = True
) -> Iterator[dict[str, Any]]:
    """A record for each schedule, and for cuBLAS before them: judged first, timed in turns if right."""
    runs: dict[str, Call] = {"cublas": partial(torch.mm, product.a, product.b)} if beside_cublas else {}
    by_name = {str(one): one for one in order}
    runs |= {name: on(product, one) for name, one in by_name.items()}
    records = {name: judged(product, name, run) for name, run in runs.items()}
    right = {name: runs[name] for name, record in records.items() if record["status"] == "ok"}
    found = times(right, rounds, product.a.device)
    limits = limits_here(product.a.device)
    for rank, (name, record) in enumerate(records.items(), 1 - beside_cublas):
        if name in found:
            record |= {"p50_ms": median(found[name]), "min_ms": min(found[name]), "samples": rounds}
        if name in by_name:
            record |= {"rank": rank, "estimate_us": estimate_us(by_name[name], product.size, limits)}
        yield record


def judged(product: Product, name: str, run: Call) -> dict[str, Any]:
    """A record of a run whose result was compared, but not timed."""
    size = product.size
    record: dict[str, Any] = {
        "rows": size.rows, "columns": size.columns, "depth": size.depth,
        "dtype": str(product.a.dtype).removeprefix("torch."), "schedule": name,
    }  # fmt: skip
    try:
        error = product.error(run())
    except Exception as reason:  # a schedule that does not compile costs itself, not the others
        return record | {"status": "crashed", "reason": first_words(reason)}
    return record | {"status": "ok" if error <= MOST_ERROR[product.a.dtype] else "incorrect", "error": error}


def times(runs: Mapping[str, Call], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Milliseconds of each run, round by round, with cold caches; on a GPU replayed as a CUDA graph."""
    gpu = device.type == "cuda"
    clock: Clock = EventClock(str(device), L2_BYTES) if gpu else HostClock()

    def timed(call: Call) -> Callable[[int, Mark], None]:
        def run(_index: int, _mark: Mark) -> None:
            call()

        return capture(run) if gpu else run

    ready = {name: timed(call) for name, call in runs.items()}
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds):
        for name, run in ready.items():
            (laps,) = clock.burst(run, turn, 1)
            found[name].append(laps[-1])
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
