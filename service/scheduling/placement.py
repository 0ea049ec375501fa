"""Answers for schedulers: a job's speed on each kind of device at each batch size, and its placement.

A job is a layer that is run again and again. What does not fit, or is refused, is a row with the reason:
a scheduler must know both what is fast and what is impossible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

from kernel_selector.kernels.contract import Device, SelectorError, UnsupportedProblem
from selector import Selector
from selector.errors import NothingFits
from selector.selection.choice import Choice
from selector.selection.query import Query
from selector.text.units import format_bytes, format_ms

from .least_memory import least_bytes, may_fit, parameter_bytes

IMPOSSIBLE = (NothingFits, UnsupportedProblem)
NO_PRICES: Mapping[str, float] = {}
HOUR_S = 3600
BATCH = "batch"  # the hyperparameter that counts items


@dataclass(frozen=True, kw_only=True)
class Job:
    """A layer with a name. The device of the query is not looked at."""

    name: str
    query: Query


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """A job on a kind of device at one batch size. Figures are None where nothing is known.

    Times are of forward and backward in training, of forward in inference. `feasible` is False when no
    implementation computes it there or fits into the memory, and None when that is not known.
    """

    job: str
    device: str  # key
    batch: int | None  # None for operators without one
    feasible: bool | None
    reason: str  # why it is not feasible, or what the figures rest on
    implementation: str | None = None
    source: str | None = None
    time_ms: float | None = None
    time_low_ms: float | None = None
    time_high_ms: float | None = None
    items_per_s: float | None = None
    peak_bytes: int | None = None
    peak_high_bytes: int | None = None
    cost_per_item: float | None = None  # in the currency of the prices, where the device has one
    snapshot: str = ""
    model_version: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True, kw_only=True)
class Placement:
    """One kind of device for a job: its place in the ranking (from 1; None when it cannot be), and why."""

    rank: int | None
    device: Device
    throughput: Throughput


def every_device(selector: Selector) -> tuple[str, ...]:
    """The keys of all devices that are measured or known by name."""
    return tuple(dict.fromkeys(item["key"] for item in selector.devices()))


def measured_devices(selector: Selector) -> tuple[str, ...]:
    """The keys of the devices that there are measurements of; without any, of all known ones."""
    listed = selector.devices()
    measured = dict.fromkeys(item["key"] for item in listed if item["measured"])
    return tuple(measured or dict.fromkeys(item["key"] for item in listed))


def throughputs(
    selector: Selector,
    jobs: Sequence[Job],
    devices: Sequence[str],
    batches: Sequence[int] = (),
    *,
    prices: Mapping[str, float] = NO_PRICES,
) -> list[Throughput]:
    """A row for every job on every device at every batch size, or at the batch size of the job itself.

    `prices` are those of an hour, by the name of the device. Raises the errors of `Selector.choose` that say
    that a question is wrong, or that none can be answered.
    """
    return [row for row, _ in _rows(selector, jobs, devices, batches, prices)]


def placements(
    selector: Selector, query: Query, devices: Sequence[str], *, prices: Mapping[str, float] = NO_PRICES
) -> list[Placement]:
    """The devices for a layer, the best by its objective first; the impossible ones last. Raises as above."""
    rows = list(_rows(selector, [Job(name="job", query=query)], devices, (), prices))
    rows.sort(key=lambda pair: _order(pair[0], query.objective))
    ranks = iter(range(1, len(rows) + 1))
    return [
        Placement(rank=None if row.feasible is False else next(ranks), device=device, throughput=row)
        for row, device in rows
    ]


def _rows(
    selector: Selector,
    jobs: Sequence[Job],
    devices: Sequence[str],
    batches: Sequence[int],
    prices: Mapping[str, float],
) -> Iterator[tuple[Throughput, Device]]:
    asked = [
        (job, device, _sized(job.query, device, batch))
        for job in jobs
        for device in devices
        for batch in (batches or (None,))
    ]
    answers = _within_devices(selector, [query for _, _, query in asked])
    resolved = {device: selector.device(device) for device in devices}
    hourly = {selector.device(name).key: price for name, price in prices.items()}
    for (job, name, query), answer in zip(asked, answers, strict=True):
        device = resolved[name]
        if isinstance(answer, IMPOSSIBLE):
            batch = query.hyperparameters.get(BATCH)
            size = batch if isinstance(batch, int) else None
            row = Throughput(job=job.name, device=device.key, batch=size, feasible=False, reason=str(answer))
        elif isinstance(answer, SelectorError):
            raise answer
        else:
            row = _row(job.name, answer, hourly.get(device.key))
        yield row, device


def _sized(query: Query, device: str, batch: int | None) -> Query:
    sizes = query.hyperparameters if batch is None else {**query.hyperparameters, BATCH: batch}
    return replace(query, device=device, hyperparameters=sizes)


def _within_devices(selector: Selector, queries: Sequence[Query]) -> list[Choice | SelectorError]:
    """Choices that fit into the memory of their devices beside parameters, whatever the queries' limits."""
    answers = selector.choose_each(queries)
    again: dict[int, tuple[Choice, Query]] = {}
    for index, answer in enumerate(answers):
        if not isinstance(answer, Choice) or answer.device.memory_bytes is None:
            continue
        free = answer.device.memory_bytes - parameter_bytes(answer.problem)
        if too_large := _too_large(answer, answer.device.memory_bytes):
            answers[index] = too_large
        elif answer.memory_interval_bytes is not None and answer.memory_interval_bytes[1] > free:
            again[index] = answer, replace(queries[index], memory=free)
    within = selector.choose_each([query for _, query in again.values()])
    for (index, (choice, _)), answer in zip(again.items(), within, strict=True):
        # the limit is ours: whoever asked has none to raise
        answers[index] = _no_room(choice, answer.least) if isinstance(answer, NothingFits) else answer
    return answers


def _no_room(choice: Choice, least: str) -> NothingFits:
    """The error of a layer that does not fit into its device's memory beside the parameters."""
    parameters = parameter_bytes(choice.problem)
    beside = f", beside {format_bytes(parameters)} of parameters" if parameters else ""
    return NothingFits(
        f"The least is {least}{beside}, and {_has(choice.device)}. "
        "Ask for a smaller batch, sequence, layer or dtype."
    )


def _has(device: Device) -> str:
    return f"{device.name} has {format_bytes(device.memory_bytes)}"


def _too_large(choice: Choice, memory_bytes: int) -> NothingFits | None:
    """The error of a layer that no implementation fits into a device's memory, or None."""
    names = [one.name for one in choice.candidates if one.excluded is None] or [choice.implementation]
    if may_fit(choice.problem, names, memory_bytes):
        return None
    least = least_bytes(choice.problem, names)
    parameters = format_bytes(parameter_bytes(choice.problem))
    return NothingFits(
        f"It needs {format_bytes(least)} or more, {parameters} of them for parameters, and "
        f"{_has(choice.device)}. Ask for a smaller batch, sequence, layer or dtype."
    )


def _row(job: str, choice: Choice, price: float | None) -> Throughput:
    low_ms, high_ms = choice.time_interval_ms or (None, None)
    batch = choice.problem.as_dict.get(BATCH)
    size = batch if isinstance(batch, int) else None
    failed = choice.exclusions.get(choice.implementation)
    items_per_s = size / choice.time_ms * 1e3 if size and choice.time_ms else None
    return Throughput(
        job=job,
        device=choice.device.key,
        batch=size,
        feasible=False if failed else None if choice.memory_bytes is None else True,
        reason=failed or _reason(choice),
        implementation=choice.implementation,
        source=choice.source,
        time_ms=choice.time_ms,
        time_low_ms=low_ms,
        time_high_ms=high_ms,
        items_per_s=items_per_s,
        peak_bytes=choice.memory_bytes,
        peak_high_bytes=choice.memory_interval_bytes[1] if choice.memory_interval_bytes else None,
        cost_per_item=price / HOUR_S / items_per_s if price and items_per_s else None,
        snapshot=choice.snapshot,
        model_version=choice.model_version,
    )


def _reason(choice: Choice) -> str:
    if choice.time_ms is None or choice.memory_bytes is None:
        return " ".join(choice.caveats) or "Nothing is known about it there."
    figures = f"{format_ms(choice.time_ms)}, {format_bytes(choice.memory_bytes)} by {choice.implementation}"
    return f"{figures} ({choice.source})"


def _order(row: Throughput, objective: str) -> tuple[bool, float, str]:
    figure = row.peak_bytes if objective == "memory" else row.time_ms
    return row.feasible is False, math.inf if figure is None else figure, row.device


def feasible(rows: Iterable[Placement]) -> list[Placement]:
    """Rows on GPUs that are known to fit: those that other schedulers are told.

    Raises NothingFits when there are none.
    """
    every = list(rows)
    found = [row for row in every if row.throughput.feasible and row.device.kind == "cuda"]
    if not found:
        reasons = (f"{row.device.key}: {row.throughput.reason}" for row in every)
        raise NothingFits(" ".join(chain(["No GPU of which it is known that this fits."], reasons)))
    return found
