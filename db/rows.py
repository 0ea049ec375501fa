"""Conversion of records to rows and back, exact."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from statistics import median_high, median_low
from typing import Any, NamedTuple

from sqlalchemy import RowMapping

from kernel_selector.kernels.contract import (
    CorruptRecord,
    Device,
    Environment,
    GateResult,
    Memory,
    Problem,
    Record,
    Status,
    Timing,
)
from kernel_selector.kernels.contract.errors import shorten
from kernel_selector.kernels.contract.record import LAUNCHED
from kernel_selector.kernels.contract.timing import undisturbed

from .schema.measurements import MEMORY, OPTIONAL_MEMORY, TIMINGS

PERCENTILES = ("p20_ms", "p50_ms", "p80_ms")
UNDISTURBED = "undisturbed_ms"  # which follows from the samples, and is kept because those take long to read
DEVICE_FLOATS = ("copy_bytes_per_s", "launch_us", "barrier_us")
DEVICE_INTEGERS = ("multiprocessors", "memory_bytes", "l2_bytes", "shared_bytes_per_multiprocessor")
DEVICE_FIELDS = tuple(field.name for field in fields(Device))
ENVIRONMENT_FIELDS = tuple(field.name for field in fields(Environment))
TOTALS = {"training": "forward_backward", "inference": "forward"}  # what a mode is judged by
OF_TOTAL = {
    name: tuple(f"{name}_{part}" for part in (*PERCENTILES, "samples", UNDISTURBED))
    for name in TOTALS.values()
}
GRAPHS = ("graph_forward", "graph_forward_backward")
FIGURES = (
    *("policy", "status", "reason", "measured_at", "gate_revision", "regime"),
    *(f"memory_{part}" for part in (*MEMORY, *OPTIONAL_MEMORY)),
    *(column for columns in OF_TOTAL.values() for column in columns),
    *(f"{name}_{part}" for name in GRAPHS for part in (*PERCENTILES, "samples", "raw_ms")),
)
COMPARED = {  # figures of one record that are held against others of the same, with their columns
    **{name: f"{name}_{UNDISTURBED}" for name in OF_TOTAL},
    **{name: f"{name}_p20_ms" for name in GRAPHS},
    **{name: f"memory_{name}" for name in ("peak_bytes", "held_bytes")},
}
FOLLOWS = frozenset(f"{name}_{UNDISTURBED}" for name in OF_TOTAL)
RAW = frozenset(f"{name}_raw_ms" for name in TIMINGS)
LARGEST_INTEGER = 2**63 - 1
ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode


class Figures(NamedTuple):
    """Fields of a record that selection and planning read, under the record's names.

    `forward`, the graphs' timings and `memory` are those of a record in training.
    """

    problem: Problem
    implementation: str
    implementation_version: str
    device: Device
    environment: Environment
    policy: str
    status: Status
    reason: str
    measured_at: datetime
    total: Percentiles | None
    peak_bytes: int | None
    gate_revision: int | None = None  # None: the first
    forward: Percentiles | None = None
    graph_forward: Percentiles | None = None
    graph_forward_backward: Percentiles | None = None
    memory: Memory | None = None
    regime: str = LAUNCHED


class Percentiles(NamedTuple):
    """Percentiles of a timing in milliseconds, over `samples` runs; `undisturbed_ms` as in Timing."""

    p20_ms: float
    p50_ms: float
    p80_ms: float
    samples: int
    undisturbed_ms: float


def canonical(*parts: Any) -> bytes:
    """The values as JSON, in UTF-8, the same on every machine.

    Raises CorruptRecord for what a database cannot hold: NaN, infinity, NUL and lone surrogates.
    """
    try:
        text = ENCODE(parts)
        encoded = text.encode()
    except (TypeError, ValueError):
        encoded = b""
    if not encoded or "\\u0000" in text:
        bad = [f"{name} = {value!r}" for name, value in _leaves("", parts) if not _storable(value)]
        if bad:
            raise CorruptRecord(
                f"A record that cannot be stored: {', '.join(bad)[:200]}. "
                "Expected finite numbers, and text without NUL characters and lone surrogates."
            )
    return encoded


def environment_row(environment: Environment) -> dict[str, Any]:
    """The columns of an environment, fingerprint included."""
    _integer("threads", environment.threads)
    return {"fingerprint": environment.fingerprint} | environment.to_dict()


def device_row(device: Device) -> dict[str, Any]:
    """The columns of a device, but its content hash."""
    row: dict[str, Any] = {name: getattr(device, name) for name in DEVICE_FIELDS}
    for name in DEVICE_FLOATS:
        row[name] = _float(row[name])
    for name in DEVICE_INTEGERS:
        row[name] = None if row[name] is None else _integer(name, row[name])
    capability = device.compute_capability
    return row | {
        "fingerprint": device.fingerprint,
        "key": device.key,
        "compute_capability": None if capability is None else list(capability),
        "matmul_flops_per_s": {name: float(rate) for name, rate in sorted(device.matmul_flops_per_s.items())},
    }


def problem_row(problem: Problem) -> dict[str, Any]:
    """The columns of a problem."""
    values = problem.as_dict
    return {
        "key": problem.key,
        "operator": problem.operator,
        "dtype": values.get("dtype"),
        "mode": values.get("mode"),
        "values": dict(values),
    }


def measurement_row(record: Record) -> dict[str, Any]:
    """The columns of a record that are its own: all but references and content hash."""
    row: dict[str, Any] = {
        "policy": record.policy,
        "status": record.status.value,
        "reason": record.reason,
        "measured_at": record.measured_at.astimezone(UTC),
        "seed": _integer("seed", record.seed),
        "gate_passed": bool(record.gate.passed),
        "gate_worst_error_ratio": _float(record.gate.worst_error_ratio),
        "gate_detail": record.gate.detail,
        "gate_revision": None
        if record.gate_revision is None
        else _integer("gate_revision", record.gate_revision),
        "regime": None if record.regime == LAUNCHED else record.regime,
    }
    for name in TIMINGS:
        timing: Timing | None = getattr(record, name)
        for part in PERCENTILES:
            row[f"{name}_{part}"] = None if timing is None else float(getattr(timing, part))
        row[f"{name}_samples"] = None if timing is None else _integer("samples", timing.samples)
        raw_ms = timing.raw_ms if timing is not None else ()
        row[f"{name}_raw_ms"] = [float(time_ms) for time_ms in raw_ms] or None
        if name in OF_TOTAL:
            row[f"{name}_{UNDISTURBED}"] = None if timing is None else float(timing.undisturbed_ms)
    for part in (*MEMORY, *OPTIONAL_MEMORY):
        counted = getattr(record.memory, part, None)
        row[f"memory_{part}"] = None if counted is None else _integer(part, counted)
    return row


def distinctive(row: dict[str, Any]) -> dict[str, Any]:
    """A measurement's row as its content hash sees it, JSON-ready.

    What is absent is left out, so that a column added later does not change who is who, and so is what
    follows from the rest; raw times count as bytes, because writing them in decimals would take half of the
    time of storing a record.
    """
    given = {name: value for name, value in row.items() if value is not None and name not in FOLLOWS}
    given["measured_at"] = row["measured_at"].isoformat()
    for name in RAW.intersection(given):
        given[name] = struct.pack(f"<{len(given[name])}d", *given[name]).hex()
    return given


def environment_of(row: RowMapping) -> Environment:
    """The environment of a row."""
    return Environment(**{name: row[name] for name in ENVIRONMENT_FIELDS})


def with_median_rates(probes: Sequence[Device]) -> Device:
    """The last probe of a device with the median of each rate and time; of two the better.

    A machine that is busy for one probe says that it is many times as slow.
    """

    def found(name: str, of: Callable[[list[float]], float]) -> float | None:
        known = [value for one in probes if (value := getattr(one, name)) is not None]
        return of(known) if known else None

    by_dtype: dict[str, list[float]] = {}
    for one in probes:
        for dtype, rate in one.matmul_flops_per_s.items():
            by_dtype.setdefault(dtype, []).append(rate)
    return replace(
        probes[-1],
        copy_bytes_per_s=found("copy_bytes_per_s", median_high),
        matmul_flops_per_s={dtype: median_high(rates) for dtype, rates in by_dtype.items()},
        launch_us=found("launch_us", median_low),
        barrier_us=found("barrier_us", median_low),
    )


def device_of(row: RowMapping) -> Device:
    """The device of a row."""
    return Device.from_dict({name: row[name] for name in DEVICE_FIELDS})


def problem_of(row: RowMapping) -> Problem:
    """The problem of a row."""
    return Problem(row["operator"], tuple(row["values"].items()))


def record_of(row: RowMapping, **shared: Any) -> Record:
    """The record of a row, given the problem, implementation, device and environment that it refers to."""
    timings: dict[str, Any] = {name: _timing_of(row, name) for name in TIMINGS}
    return Record(
        policy=row["policy"],
        status=Status(row["status"]),
        reason=row["reason"],
        measured_at=row["measured_at"],
        seed=row["seed"],
        gate_revision=row["gate_revision"],
        regime=row["regime"] or LAUNCHED,
        gate=GateResult(
            passed=row["gate_passed"],
            worst_error_ratio=row["gate_worst_error_ratio"],
            detail=row["gate_detail"],
        ),
        memory=_memory_of(row),
        **timings,
        **shared,
    )


def figures_of(row: RowMapping, *, problem: Problem, **shared: Any) -> Figures:
    """The figures of a row that has the columns FIGURES, given what it refers to."""
    name = TOTALS["training" if problem["mode"] == "training" else "inference"]
    timed = row[f"{name}_p50_ms"] is not None
    of_step: dict[str, Any] = {}
    if timed and name == TOTALS["training"]:
        of_step = {graph: _percentiles_of(row, graph) for graph in GRAPHS}
        forward = row["forward_p50_ms"] is not None
        of_step["forward"] = Percentiles(*(row[one] for one in OF_TOTAL["forward"])) if forward else None
        of_step["memory"] = _memory_of(row)
    return Figures(
        problem=problem,
        policy=row["policy"],
        status=Status(row["status"]),
        reason=row["reason"],
        measured_at=row["measured_at"],
        total=Percentiles(*(row[column] for column in OF_TOTAL[name])) if timed else None,
        peak_bytes=row["memory_peak_bytes"],
        gate_revision=row["gate_revision"],
        regime=row["regime"] or LAUNCHED,
        **of_step,
        **shared,
    )


def _memory_of(row: RowMapping) -> Memory | None:
    if row["memory_peak_bytes"] is None:
        return None
    return Memory(**{part: row[f"memory_{part}"] for part in (*MEMORY, *OPTIONAL_MEMORY)})


def _percentiles_of(row: RowMapping, name: str) -> Percentiles | None:
    """Of a timing whose time without disturbance is no column."""
    if row[f"{name}_p50_ms"] is None:
        return None
    p20, p50, p80, samples, raw_ms = (row[f"{name}_{part}"] for part in (*PERCENTILES, "samples", "raw_ms"))
    kept = raw_ms is not None and len(raw_ms) == samples
    return Percentiles(p20, p50, p80, samples, undisturbed(raw_ms) if kept else p20)


def _timing_of(row: RowMapping, name: str) -> Timing | None:
    if row[f"{name}_p50_ms"] is None:
        return None
    return Timing(
        p20_ms=row[f"{name}_p20_ms"],
        p50_ms=row[f"{name}_p50_ms"],
        p80_ms=row[f"{name}_p80_ms"],
        samples=row[f"{name}_samples"],
        raw_ms=tuple(row[f"{name}_raw_ms"] or ()),
    )


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _integer(name: str, value: int) -> int:
    if not isinstance(value, int) or not -LARGEST_INTEGER <= value <= LARGEST_INTEGER:
        raise CorruptRecord(f"{name}={shorten(value)}: expected an integer of at most 64 bits.")
    return value


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every value that is neither list nor dictionary, with the name that is nearest to it."""
    if isinstance(value, Mapping):
        for inner, item in value.items():
            yield from _leaves(inner, item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(name, item)
    else:
        yield name or "name", value


def _storable(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)
    return value is None or (isinstance(value, (bool, int, float)) and math.isfinite(value))
