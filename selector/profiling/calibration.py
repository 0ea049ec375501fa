"""Calibration of a GPU: a few problems are measured that another one was measured at."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, zip_longest
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, Record, Status

from ..errors import InvalidRequest, NoMeasurements
from ..selection.evidence import Evidence
from ..selection.selector import Selector
from ..selection.transfer import Corrections, Seen, seen_on_both
from . import profile as profiling
from .events import Event, ProblemStored
from .run import Run

if TYPE_CHECKING:
    from kernel_selector.db import Database
    from kernel_selector.kernels.measure import Session
    from kernel_selector.kernels.measure.jobs import Job

PROBLEMS, BUDGET_S = 40, 600.0
QUICK_PROBLEMS, QUICK_BUDGET_S = 15, 120.0
CANDIDATES = 5  # of a problem: the framework's own, and the fastest others
LEAST_CANDIDATES = 3
LONGEST_MS = 20.0  # of the framework's own, there
OF_MEMORY = 1 / 4  # of the device, at most
HOST, MEMORY, ARITHMETIC = "host", "memory", "arithmetic"
THROTTLED = 1.1  # times the first time of a problem that is measured once more at the end


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """An operator's calibration: how many measurements, their median factor over what was carried over, and
    median errors of times without corrections and with those by the other problems."""

    measurements: int
    factor: float
    error_before: float
    error_after: float | None


@dataclass(frozen=True, kw_only=True)
class CalibrationFinished:
    """Result of a calibration. `throttled` is how much slower the first problem was at the end, None where it
    was not."""

    database: str
    device: str
    origin: str
    problems: int
    operators: Mapping[str, Calibrated]
    throttled: float | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dictionary."""
        return asdict(self)


def calibrate(
    *,
    device: str | None = None,
    database: Database | str | Path | None = None,
    quick: bool = False,
    budget_s: float | None = None,
    problems: int | None = None,
) -> Iterator[Event | CalibrationFinished]:
    """Progress events of measuring a few problems of all operators on a GPU, at which another was measured.

    After it times that are carried over to this kind of GPU are corrected by what was seen. What an earlier
    run has finished is kept.

    Parameters
    ----------
    device : str, optional
        Torch device; this machine's default when None.
    database : Database, URL or path, optional
        As for `profile`.
    quick : bool
        15 problems and 2 minutes, not 40 and 10.
    budget_s, problems : optional
        Seconds, and number of problems, where these are others.

    Raises
    ------
    InvalidRequest
        For a processor: `profile` measures it.
    NoMeasurements
        Where no other GPU was measured.
    """
    with profiling.session(device) as measuring, profiling.opened(database, create=True) as store:
        yield from calibrate_with(
            store,
            measuring,
            problems or (QUICK_PROBLEMS if quick else PROBLEMS),
            budget_s or (QUICK_BUDGET_S if quick else BUDGET_S),
        )


def calibrate_with(
    store: Database, measuring: Session, problems: int, budget_s: float
) -> Iterator[Event | CalibrationFinished]:
    """Progress events, as of `calibrate`, with an open database and measuring session."""
    started, here = time.monotonic(), measuring.device
    if here.kind != "cuda":
        raise InvalidRequest(
            f"{here.name} is a processor: times of processors are not carried over. `selector profile "
            "--operator all --budget 10m` measures it."
        )
    selector = Selector(store)
    jobs = jobs_of(selector, here, problems)
    if not jobs:
        raise NoMeasurements(
            f"No other GPU was measured at problems for {here.name}: there is nothing to carry over. "
            "`selector profile --operator all` measures this one."
        )
    origin = selector.others(jobs[0].problem.operator, here)[0]
    taken: list[Record] = []
    for event in Run(store, measuring, budget_s).events(jobs):
        taken += event.records if isinstance(event, ProblemStored) else ()
        yield event
    throttled = None
    if taken and time.monotonic() - started < budget_s:
        first = [one for one in taken if one.problem == taken[0].problem]
        again: list[Record] = []
        from kernel_selector.kernels.measure.jobs import Job

        once_more = Run(store, measuring, again=True)
        for event in once_more.events([Job(first[0].problem, tuple(one.implementation for one in first))]):
            again += event.records if isinstance(event, ProblemStored) else ()
            yield event
        throttled = _slower(first, again)
    yield CalibrationFinished(
        database=store.location,
        device=here.name,
        origin=origin.name,
        problems=len({one.problem for one in taken}),
        operators=dict(_judged(selector, here, taken)),
        throttled=throttled,
        seconds=time.monotonic() - started,
    )


def jobs_of(
    selector: Selector, device: Device, count: int, among: Mapping[str, object] | None = None
) -> list[Job]:
    """The problems that tell most of a device, at most `count`, with the implementations to measure there.

    Of each operator problems that were measured on the device from which it is carried over: one that waits
    for the host, one for the memory and one for the arithmetic, with as many candidates as there are. `among`
    are the keys of problems to choose from, all when None.
    """
    turns = [_jobs_of(selector, device, operator, among) for operator in registry.operators()]
    every = [one for one in chain.from_iterable(zip_longest(*turns)) if one is not None]
    return every[:count]


def _jobs_of(
    selector: Selector, device: Device, operator: str, among: Mapping[str, object] | None
) -> Iterator[Job]:
    """Jobs of one operator, the kinds of problem by turns."""
    from kernel_selector.kernels.measure.jobs import Job

    origins = selector.others(operator, device)
    if not origins:
        return
    evidence, origin = selector.evidence(operator, origins[0].key), origins[0]
    kinds: dict[str, list[tuple[int, str, Job]]] = {HOST: [], MEMORY: [], ARITHMETIC: []}
    for problem in evidence.problems.values():
        if among is not None and problem.key not in among:
            continue
        found = _candidates(problem, evidence, device, origin)
        if found is not None:
            kind, names = found
            kinds[kind].append((-len(names), problem.key, Job(problem, names[:CANDIDATES])))
    order = (kinds[kind] for kind in (ARITHMETIC, MEMORY, HOST))
    for turn in zip_longest(*(sorted(each, key=lambda one: one[:2]) for each in order)):
        yield from (one[2] for one in turn if one is not None)


def _candidates(
    problem: Problem, evidence: Evidence, device: Device, origin: Device
) -> tuple[str, tuple[str, ...]] | None:
    """What the framework's own waits for, and the implementations that were measured and run here, it first;
    None where a problem tells nothing, or takes too long or too much."""
    from .sweep import COMPILED

    default = registry.operator(problem.operator).default
    tier = next(evidence.measured(problem, origin, None), None)
    if tier is None or default not in tier.estimates or tier.estimates[default].time_ms > LONGEST_MS:
        return None
    runs = {one.name for one in registry.candidates(problem, device)[0]}
    names = [name for name in tier.estimates if name in runs and not name.startswith(COMPILED)]
    names.sort(key=lambda name: (name != default, tier.estimates[name].time_ms))
    most = max(tier.estimates[name].high_bytes for name in names) if names else 0
    if len(names) < LEAST_CANDIDATES or names[0] != default or most > OF_MEMORY * (device.memory_bytes or 0):
        return None
    work = registry.implementation(problem.operator, default).work(problem)
    time_ms = tier.estimates[default].time_ms
    if time_ms < 2 * evidence.host_shares.ms(default, problem["mode"], work.launches):
        return HOST, tuple(names)
    rates = origin.matmul_flops_per_s
    flops = rates.get(problem["dtype"]) or rates.get("float32") or math.inf
    waits = (
        MEMORY
        if work.moved_bytes / (origin.copy_bytes_per_s or math.inf) > work.flops / flops
        else ARITHMETIC
    )
    return waits, tuple(names)


def _slower(first: Sequence[Record], again: Sequence[Record]) -> float | None:
    """How many times as long the same candidates take, None where that is about as long."""
    before = {one.implementation: one.total.undisturbed_ms for one in first if one.total}
    found = [
        one.total.undisturbed_ms / before[one.implementation]
        for one in again
        if one.total and one.status is Status.OK and one.implementation in before
    ]
    ratio = median(found) if found else 1.0
    return ratio if ratio > THROTTLED else None


def _judged(selector: Selector, device: Device, taken: Sequence[Record]) -> Iterator[tuple[str, Calibrated]]:
    """How far off what was carried over is, by operator, without corrections and with them."""
    operators = dict.fromkeys(one.problem.operator for one in taken)
    origins = {operator: selector.others(operator, device)[0] for operator in operators}
    every = [one for each in operators for one in _seen(selector, each, device, origins[each], taken)]
    for operator, origin in origins.items():
        own = [one for one in every if one.problem.operator == operator]
        if not own:
            continue
        left = []
        for problem in dict.fromkeys(one.problem for one in own):
            others = [one for one in every if one.problem != problem]
            seen = Corrections(others, operator, device, origin)
            left += [seen.left(one) for one in own if one.problem == problem and seen.count]
        yield (
            operator,
            Calibrated(
                measurements=len(own),
                factor=math.exp(median(one.time for one in own)),
                error_before=_error([one.time for one in own]),
                error_after=_error(left) if left else None,
            ),
        )


def _seen(
    selector: Selector, operator: str, device: Device, origin: Device, taken: Sequence[Record]
) -> list[Seen]:
    """What was taken of an operator and was measured on the other device too."""
    there = selector.evidence(operator, origin.key)
    versions = {name: one.version for name, one in registry.implementations(operator).items()}
    here = Evidence([one for one in taken if one.problem.operator == operator], versions)
    return list(seen_on_both(here, there, device, origin))


def _error(logarithms: Sequence[float]) -> float:
    return median(abs(math.expm1(one)) for one in logarithms)
