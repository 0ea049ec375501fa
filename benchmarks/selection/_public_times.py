"""Times that others measured on many GPUs, each device foretold from the others."""

from __future__ import annotations

import csv
import gzip
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem
from selector.selection import transfer
from selector.workloads.sampling import typed

FILES = ("linear", "attention", "batched_matmul", "norm", "activation")
ITS_OWN = "torch_"  # names of torch's own implementations begin so
ATTENTION = ("trtllm_context_fmha", "vllm_flash_attn", "sglang_fa3", "sglang_flashinfer", "flash_attn_varlen")
CLOSE = 1.1  # pairs of devices whose times differ by less are not put in an order
LONG_MS = 0.05  # half of the shorter ones is what a launch takes, which each source counts in its own way
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}  # as the columns of rates have them
FACTS = {"operator", "device", "pass", "implementation", "milliseconds", "source", "version", "note"}
RESIDENT = "cache resident"  # the note of rows that are faster than memory allows
Times = dict[Problem, dict[str, float]]  # milliseconds by device


class Foretold(NamedTuple):
    """One time on a held-out device, and what was foretold of it from another one."""

    problem: Problem
    device: str
    origin: str
    measured_ms: float
    foretold_ms: float
    low_ms: float
    high_ms: float
    known: bool  # whether the other one is of the same compute capability


def held_out(folder: Path) -> dict[str, Any]:
    """The figures of each family of problems: a dtype of an operator. Raises OSError and ValueError."""
    sheet = [row for row in _rows(folder, "devices") if row["compute_capability"]]  # of NVIDIA alone
    families: dict[str, Times] = defaultdict(dict)
    for problem, found in _times(folder, {row["device"] for row in sheet}).items():
        if len(found) > 1:
            families[f"{problem.operator} {problem['dtype']}"][problem] = found
    return {name: _judged(problems, sheet) for name, problems in sorted(families.items())}


def _judged(
    problems: Mapping[Problem, Mapping[str, float]], sheet: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """The figures of one family, all together and by held-out device."""
    devices = sorted({device for found in problems.values() for device in found})
    every: list[Foretold] = []
    ordered: dict[bool, list[bool]] = {True: [], False: []}  # of long times, and of short ones
    for device in devices:
        known = _devices(sheet, held_out=device)
        least = _least(problems)
        mine = [one for one in (_foretold(*each, device, known, least) for each in problems.items()) if one]
        every += mine
        for one in mine:
            ordered[one.measured_ms >= LONG_MS] += _in_order(one, problems[one.problem])
    long = [one for one in every if one.measured_ms >= LONG_MS]
    return {
        "times": _errors(every),
        "long": _errors(long),
        "known capability": _errors([one for one in long if one.known]),
        "new capability": _errors([one for one in long if not one.known]),
        "pairs": {
            name: {"count": len(each), "ordered_rightly": round(float(np.mean(each)), 4)}
            for name, each in (("times", ordered[True] + ordered[False]), ("long", ordered[True]))
            if each
        },
        "device": {device: _errors([one for one in long if one.device == device]) for device in devices},
    }


def _foretold(
    problem: Problem,
    found: Mapping[str, float],
    device: str,
    known: Mapping[str, Device],
    least: Mapping[str, float],
) -> Foretold | None:
    """What is foretold of a problem on a device from the one most like it that has a time."""
    if device not in found or len(found) < 2:
        return None
    origins = transfer.alike(known[device], [known[name] for name in found])
    if not origins:
        return None
    origin, target = origins[0], known[device]
    work = registry.implementation(problem.operator, registry.operator(problem.operator).default).work(
        problem
    )
    there = found[origin.key]
    between = transfer.Between(target, origin, problem["dtype"])
    time_ms = there * between.ratio(there, least[origin.key], work)
    wider = transfer.doubt(target, origin).wider
    return Foretold(
        problem,
        device,
        origin.key,
        found[device],
        time_ms,
        time_ms / wider,
        time_ms * wider,
        target.compute_capability == origin.compute_capability,
    )


def _least(problems: Mapping[Problem, Mapping[str, float]]) -> dict[str, float]:
    """The least time of each device: the host's share of a launch, or what a kernel takes at least."""
    least: dict[str, float] = {}
    for found in problems.values():
        for device, time_ms in found.items():
            least[device] = min(time_ms, least.get(device, time_ms))
    return least


def _in_order(one: Foretold, found: Mapping[str, float]) -> Iterator[bool]:
    """Whether the held-out device is put rightly before or behind each other one with another time."""
    for other, time_ms in found.items():
        if other != one.device and max(time_ms, one.measured_ms) > CLOSE * min(time_ms, one.measured_ms):
            yield (one.foretold_ms < time_ms) == (one.measured_ms < time_ms)


def _errors(found: Sequence[Foretold]) -> dict[str, Any] | None:
    if not found:
        return None
    ratio = np.array([one.foretold_ms / one.measured_ms for one in found])
    inside = [one.low_ms <= one.measured_ms <= one.high_ms for one in found]
    return {
        "count": len(found),
        "median_error": round(float(np.median(np.abs(ratio - 1))), 4),
        "p90_error": round(float(np.percentile(np.abs(ratio - 1), 90)), 4),
        "median_ratio": round(float(np.median(ratio)), 4),
        "in_their_intervals": round(float(np.mean(inside)), 4),
    }


def _devices(sheet: Sequence[Mapping[str, str]], *, held_out: str) -> dict[str, Device]:
    """The devices by key, with the rates that they reached; the held-out one with the share of the others."""
    found = {}
    for row in sheet:
        others = [other for other in sheet if other["device"] not in (held_out, row["device"])]
        is_open = row["device"] == held_out
        rates = {
            dtype: _rate(row, f"achieved_{name}_tflops", f"{name}_tflops", others, is_open=is_open)
            for dtype, name in DTYPES.items()
        }
        moved = _rate(row, "achieved_gb_per_s", "memory_gb_per_s", others, is_open=is_open)
        major, minor = row["compute_capability"].split(".")
        found[row["device"]] = Device(
            name=row["device"],
            kind="cuda",
            compute_capability=(int(major), int(minor)),
            multiprocessors=int(row["multiprocessors"]),
            memory_bytes=int(row["memory_bytes"]),
            l2_bytes=int(row["l2_bytes"]),
            copy_bytes_per_s=moved and 1e9 * moved,
            matmul_flops_per_s={dtype: 1e12 * rate for dtype, rate in rates.items() if rate},
        )
    return found


def _rate(
    row: Mapping[str, str], reached: str, stated: str, others: Iterable[Mapping[str, str]], *, is_open: bool
) -> float | None:
    """The rate that a device reached, else what it states times the median share that the others reach."""
    if row[reached] and not is_open:
        return float(row[reached])
    if not row[stated]:
        return None
    shares = [
        float(other[reached]) / float(other[stated]) for other in others if other[reached] and other[stated]
    ]
    return float(row[stated]) * (float(np.median(shares)) if shares else 1.0)


def _times(folder: Path, devices: set[str]) -> Times:
    """Forward times of torch's own implementations, and of the attention that serves; of several the mean."""
    rows: dict[tuple[tuple[str, str], ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in (row for name in FILES for row in _rows(folder, name)):
        own = row["implementation"].startswith(ATTENTION if row["operator"] == "attention" else ITS_OWN)
        if own and row["device"] in devices and row["pass"] == "forward" and RESIDENT not in row["note"]:
            time_ms = float(row["milliseconds"])
            if not 0 < time_ms < math.inf:
                raise ValueError(
                    f"{row['operator']} on {row['device']} took {time_ms} ms: expected more than 0"
                )
            sizes = tuple((name, value) for name, value in row.items() if name not in FACTS)
            rows[("operator", row["operator"]), *sizes][row["device"]].append(time_ms)
    return {
        _problem(dict(key)): {device: float(np.exp(np.mean(np.log(each)))) for device, each in found.items()}
        for key, found in rows.items()
    }


def _problem(sizes: Mapping[str, str]) -> Problem:
    operator = registry.operator(sizes["operator"])
    given = {name: value for name, value in sizes.items() if name != "operator"}
    return operator.problem({**typed(operator.name, given), "mode": "inference"})


def _rows(folder: Path, name: str) -> list[dict[str, str]]:
    with gzip.open(folder / f"{name}.csv.gz", "rt", newline="") as lines:
        return list(csv.DictReader(lines))
