"""Throughputs as the files of cluster schedulers that know kinds of GPUs.

Gavel reads steps per second of each job type on each worker type; Sia a table of step times over local batch
sizes for each GPU type; AdaptDL, and Sia beside it, a line through these: T = alpha_c + beta_c * batch.
All describe one GPU: times between GPUs are not ours to tell, and are left at zero.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from selector.errors import InvalidRequest

from .placement import Throughput

CSV_COLUMNS = tuple(item.name for item in fields(Throughput))
SIA_COLUMNS = ("gpu_type", "local_bsz", "placement", "step_time", "sync_time")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what spreadsheets take text for that begins so
# AdaptDL's model of time has parts for networks within and between nodes, which a single GPU does not show
NO_NETWORK = {"alpha_n": 0.0, "beta_n": 0.0, "alpha_r": 0.0, "beta_r": 0.0, "gamma": 1.0}


def to_csv(rows: Iterable[Throughput]) -> str:
    """All rows with all columns; what is not known is empty. Text that spreadsheets would take for a formula
    has an apostrophe before it."""
    return _table(CSV_COLUMNS, (row.to_dict().values() for row in rows))


def to_gavel(rows: Iterable[Throughput]) -> dict[str, Any]:
    """`{worker type: {"('name (batch size 64)', 1)": {"null": steps per second}}}`; 0 for what cannot be.

    stanford-futuredata/gavel, `simulation_throughputs.json`: "null" is the job alone on its worker.
    """
    found: dict[str, Any] = defaultdict(dict)
    for row in rows:
        steps_per_s = 1e3 / row.time_ms if row.feasible and row.time_ms else 0.0
        size = "" if row.batch is None else f" (batch size {row.batch})"
        found[row.device][repr((f"{row.job}{size}", 1))] = {"null": steps_per_s}
    return dict(found)


def to_sia(rows: Iterable[Throughput]) -> str:
    """CSV of one job on one GPU (placement 1), step times in seconds; sizes that do not fit are left out.

    siasosp23/artifacts: one such table for each job. Raises InvalidRequest for rows of several.
    """
    given = list(rows)
    jobs = dict.fromkeys(row.job for row in given)
    if len(jobs) != 1:
        raise InvalidRequest(f"Sia reads one table a job: {len(jobs)} jobs were given, expected one.")
    lines = dict.fromkeys(  # a device that has two names, or a size that is named twice, is one line
        (row.device, row.batch, 1, row.time_ms / 1e3, 0.0)
        for row in given
        if row.feasible and row.time_ms and row.batch
    )
    return _table(SIA_COLUMNS, lines)


def to_adaptdl(rows: Iterable[Throughput]) -> dict[str, Any]:
    """`{job: {device: hints}}` with the hints that petuum/adaptdl takes at `PUT /hints/{namespace}/{name}`.

    Raises InvalidRequest where fewer than two batch sizes have times: a line needs two points.
    """
    groups: dict[str, dict[str, list[Throughput]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.feasible and row.time_ms and row.batch:
            groups[row.job][row.device].append(row)
    if not groups:
        raise InvalidRequest("No batch size has a known time: there is nothing to fit.")
    return {
        job: {device: _hints(job, device, found) for device, found in devices.items()}
        for job, devices in groups.items()
    }


def _hints(job: str, device: str, rows: Sequence[Throughput]) -> dict[str, Any]:
    sizes = sorted({row.batch for row in rows if row.batch is not None})
    if len(sizes) < 2:
        raise InvalidRequest(
            f"{job} on {device}: {len(sizes)} batch sizes have known times, expected two or more."
        )
    alpha, beta = _line({row.batch: row.time_ms / 1e3 for row in rows if row.batch and row.time_ms})
    return {
        "initBatchSize": sizes[0],
        "localBszBounds": [sizes[0], sizes[-1]],
        "maxBatchSize": sizes[-1],
        "maxProfiledReplicas": 1,
        "gradientAccumulation": False,
        "perfParams": {"alpha_c": alpha, "beta_c": beta, **NO_NETWORK},
    }


def _line(seconds: Mapping[int, float]) -> tuple[float, float]:
    """Least squares with neither part negative: a step takes no less for being larger."""
    count, mean_x = len(seconds), sum(seconds) / len(seconds)
    mean_y = sum(seconds.values()) / count
    slope = sum((x - mean_x) * (y - mean_y) for x, y in seconds.items())
    slope /= sum((x - mean_x) ** 2 for x in seconds)
    if slope < 0:
        return mean_y, 0.0
    if mean_y - slope * mean_x < 0:  # through the origin instead
        return 0.0, sum(x * y for x, y in seconds.items()) / sum(x * x for x in seconds)
    return mean_y - slope * mean_x, slope


def _table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """The value as spreadsheets may see it: text stays text, numbers are never formulas."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
