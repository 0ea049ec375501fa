"""Recorded measurements to replay: the real ones of tests/assets, and made-up ones.

The made-up ones follow a simple machine (operations, bytes, launches, each with an efficiency that depends
on the implementation and a step at sizes that do not divide) with deterministic noise, so that tests
know the truth and need neither a clock nor a GPU.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import (
    Device,
    Environment,
    GateResult,
    Memory,
    Problem,
    Record,
    Status,
    Timing,
)

# the implementations of lstm that take plain problems on a CPU
ON_CPU = sorted(
    found.name
    for found in registry.candidates(
        registry.operator("lstm").problem(hidden=64, batch=8), Device(name="a processor", kind="cpu")
    )[0]
)
ASSET = Path(__file__).parent.parent / "assets" / "records.jsonl"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

HERE = Device(
    name="Replay CPU 8",
    kind="cpu",
    vendor="test",
    host="Replay CPU 8",
    multiprocessors=8,
    memory_bytes=32 * 2**30,
    l2_bytes=2**21,
    copy_bytes_per_s=2e10,
    matmul_flops_per_s={"float32": 4e11, "float64": 2e11},
    launch_us=4.0,
)
SOFTWARE = Environment(
    python="3.12.1",
    torch="2.13.0",
    triton=None,
    cuda=None,
    cudnn=None,
    driver=None,
    threads=8,
    system="Linux x86_64",
)
GRID = {
    "hidden": (32, 64, 100, 128, 256, 512),
    "batch": (1, 8, 32, 128),
    "seq": (10, 50, 200),
    "layers": (1, 2),
    "mode": ("training", "inference"),
}
# implementation: share of the matmul rate, launches a step, bytes multiplied by
CHARACTER = {
    "torch_lstm": (0.45, 5.0, 1.0),
    "unfused": (0.25, 28.0, 1.4),
    "cell_loop": (0.40, 9.0, 1.1),
    "hoisted": (0.65, 6.0, 1.1),
    "hoisted_batch_minor": (0.75, 6.5, 1.2),
    "recompute": (0.50, 7.0, 0.5),
}


def problems(**grid: Iterable[object]) -> Iterator[Problem]:
    """Every combination of the grid's hyperparameters (GRID's where not given), as LSTM problems."""
    values = {**GRID, **grid}
    operator = registry.operator("lstm")
    for combination in itertools.product(*values.values()):
        yield operator.problem(dict(zip(values, combination, strict=True)))


def _draw(*words: object) -> float:
    """A number in [0, 1) that depends on the words alone."""
    digest = hashlib.sha256(" ".join(map(str, words)).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def true_time_ms(problem: Problem, name: str, device: Device = HERE) -> float:
    """What the made-up machine takes."""
    share, launches, moved = CHARACTER.get(name, (0.4, 12.0, 1.0))
    work = registry.operator(problem.operator).work(problem)
    odd = 1.25 if problem["hidden"] % 32 else 1.0
    narrow = problem["batch"] / (problem["batch"] + 4 * share)  # small batches use the units badly
    rate = device.matmul_flops_per_s[problem["dtype"]] * share * narrow
    seconds = work.flops * odd / rate + work.moved_bytes * moved / device.copy_bytes_per_s
    return (seconds + work.launches * launches * device.launch_us * 1e-6) * 1e3


def true_memory_bytes(problem: Problem, name: str) -> int:
    """What the made-up machine holds at the peak."""
    work = registry.operator(problem.operator).work(problem)
    output = problem["seq"] * problem["batch"] * problem["hidden"] * 4
    return int(output + CHARACTER.get(name, (0, 0, 1.0))[2] * (work.saved_bytes + 0.2 * work.moved_bytes))


def record(
    problem: Problem,
    name: str,
    *,
    time_ms: float | None = None,
    memory_bytes: int | None = None,
    device: Device = HERE,
    environment: Environment = SOFTWARE,
    spread: float = 0.01,
) -> Record:
    """A good record, by default of the made-up machine with 2 % of noise."""
    noise = 1 + 0.02 * (2 * _draw(problem.key, name, device.fingerprint) - 1)
    time = true_time_ms(problem, name, device) * noise if time_ms is None else time_ms
    size = true_memory_bytes(problem, name) if memory_bytes is None else memory_bytes
    timing = Timing(p20_ms=time, p50_ms=time * (1 + spread), p80_ms=time * (1 + 2 * spread), samples=9)
    return Record(
        problem=problem,
        implementation=name,
        implementation_version=registry.implementation(problem.operator, name).version,
        device=device,
        environment=environment,
        policy="quick",
        status=Status.OK,
        gate=GateResult(passed=True, worst_error_ratio=0.1),
        measured_at=EPOCH + timedelta(seconds=int(1e6 * _draw(problem.key, name))),
        forward=timing,
        forward_backward=timing if problem["mode"] == "training" else None,
        memory=Memory(peak_bytes=size, held_bytes=size // 2, workspace_bytes=0),
    )


def failed(problem: Problem, name: str, status: Status, reason: str = "it broke") -> Record:
    """A record of a candidate that did not end well."""
    good = record(problem, name)
    return replace(
        good,
        status=status,
        reason=reason,
        gate=GateResult.not_reached(reason),
        forward=None,
        forward_backward=None,
        memory=None,
    )


def sweep(which: Iterable[Problem], device: Device = HERE) -> list[Record]:
    """Good records of every implementation that supports each problem."""
    return [
        record(problem, item.name, device=device)
        for problem in which
        for item in registry.candidates(problem, device)[0]
    ]


def recorded(*, device_kind: str | None = None) -> list[Record]:
    """The real records of tests/assets, with the current versions of the implementations.

    A line of the file tells either the circumstances (device, environment, policy) of the lines below it,
    or a problem and what each implementation did with it. Single samples, CUDA graphs, and candidates that
    refused the problem are left out of it.
    """
    known = registry.implementations("lstm")
    found: list[Record] = []
    circumstances: dict[str, Any] = {}
    for line in map(json.loads, ASSET.read_text().splitlines()):
        if "device" in line:
            circumstances = line
            continue
        if device_kind not in (None, circumstances["device"]["kind"]):
            continue
        shared = {**circumstances, "problem": line["problem"], "measured_at": line["measured_at"]}
        for name, result in line["results"].items():
            named = {"implementation": name, "implementation_version": known[name].version, "status": "ok"}
            found.append(Record.from_json(json.dumps({**shared, **named, **result})))
    return found
