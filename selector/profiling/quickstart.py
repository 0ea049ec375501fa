"""Profiling, training, evaluation and verification of choices on one machine in one run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem

from ..errors import NoMeasurements, TooFewProblems
from ..workloads.sampling import random_problems
from . import profile as profiling
from .calibration import QUICK_BUDGET_S, QUICK_PROBLEMS, CalibrationFinished, calibrate_with
from .verification import Checked, CheckStarted, check, geometric_mean

if TYPE_CHECKING:
    from kernel_selector.db import Database

OPERATOR = "lstm"
PROBLEMS, CHECKS = 96, 12
PROFILE_SHARE = 0.7  # of the budget; training and the check have the rest
CALIBRATION_SHARE = 0.3  # of the budget, of a GPU that nobody measured, out of the share of profiling
PROFILE_SEED, CHECK_SEED = 1, 2


@dataclass(frozen=True, kw_only=True)
class QuickstartStarted:
    """Start of a quickstart: database and device are ready. `load` is the machine's load per core before
    the run.
    """

    database: str
    device: Device
    budget_s: float
    load: float


@dataclass(frozen=True, kw_only=True)
class TrainingStarted:
    """Start of training the cost model."""


@dataclass(frozen=True, kw_only=True)
class TrainingFinished:
    """Cost model, trained in `seconds` or kept from an earlier run.

    `evaluation` is its quality on held-out problems; None with a `reason` when there is no model.
    """

    fresh: bool
    seconds: float
    evaluation: Mapping[str, Any] | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class QuickstartFinished:
    """Result of a quickstart: verified choices, and where everything is. `unchecked` problems found no
    time.
    """

    database: str
    device: str
    checks: tuple[Checked, ...]
    unchecked: int
    default: str
    seconds: float

    @property
    def slowdown(self) -> float | None:
        """Geometric mean of the choices' times over the best times; None without verified choices."""
        return geometric_mean([one.slowdown for one in self.checks])

    @property
    def default_slowdown(self) -> float | None:
        """Geometric mean of the framework default's times over the best times."""
        return geometric_mean([one.default_slowdown for one in self.checks])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dictionary."""
        return {
            **asdict(self),
            "checks": [one.to_dict() for one in self.checks],
            "geometric_mean_slowdown": self.slowdown,
            "geometric_mean_slowdown_of_default": self.default_slowdown,
        }


Event = (
    profiling.Event
    | CalibrationFinished
    | QuickstartStarted
    | TrainingStarted
    | TrainingFinished
    | CheckStarted
    | Checked
    | QuickstartFinished
)


def quickstart(
    *,
    device: str | None = None,
    database: Database | str | Path | None = None,
    budget_s: float = 240.0,
    problems: int = PROBLEMS,
    checks: int = CHECKS,
    again: bool = False,
) -> Iterator[Event]:
    """Progress events of profiling, training and verification within about `budget_s` seconds.

    Finished steps of earlier runs are kept, unless `again`.

    Parameters
    ----------
    device : str, optional
        Torch device; this machine's default when None.
    database : Database, URL or path, optional
        As for `profile`.
    budget_s : float
        Seconds.
    problems, checks : int
        Number of problems to profile, and of choices to verify.
    """
    started = time.monotonic()
    with profiling.session(device) as measuring, profiling.opened(database, create=True) as store:
        kind = measuring.device.kind
        profiled = random_problems(OPERATOR, kind, count=problems, seed=PROFILE_SEED)
        known = frozenset(problem.key for problem in profiled)
        blind = random_problems(OPERATOR, kind, count=checks, seed=CHECK_SEED, exclude=known)
        yield QuickstartStarted(
            database=store.location, device=measuring.device, budget_s=budget_s, load=machine_load()
        )
        if kind == "cuda":
            yield from _calibrated(store, measuring, min(CALIBRATION_SHARE * budget_s, QUICK_BUDGET_S))
        yield from profiling.profile_with(
            OPERATOR,
            profiled,
            store=store,
            measuring=measuring,
            budget_s=max(PROFILE_SHARE * budget_s - (time.monotonic() - started), 0.0),
            again=again,
        )
        yield from _learn(store, profiled)
        rows: list[Checked] = []
        for event in check(store, measuring, blind, deadline=started + budget_s, again=again):
            rows += [event] if isinstance(event, Checked) else []
            yield event
        yield QuickstartFinished(
            database=store.location,
            device=measuring.device.name,
            checks=tuple(rows),
            unchecked=len(blind) - len(rows),
            default=registry.operator(OPERATOR).default,
            seconds=time.monotonic() - started,
        )


def _calibrated(
    store: Database, measuring: Any, budget_s: float
) -> Iterator[profiling.Event | CalibrationFinished]:
    """Events of a quick calibration, none on a kind of GPU whose measurements ship."""
    from ..selection.joint_evidence import JointEvidence
    from ..selection.selector import Selector

    evidence = Selector(store).evidence(OPERATOR, measuring.device.key)
    if not (evidence.shipped or isinstance(evidence, JointEvidence)):
        with suppress(NoMeasurements):  # without what ships there is nothing to carry over
            yield from calibrate_with(store, measuring, QUICK_PROBLEMS, budget_s)


def machine_load() -> float:
    """Runnable processes per core, averaged over the last minute; 0 where the system does not say."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except (AttributeError, OSError):
        return 0.0


def _learn(store: Database, profiled: Sequence[Problem]) -> Iterator[TrainingStarted | TrainingFinished]:
    """Training events, when there is no model or the model is older than the newest record of a profiled
    problem.
    """
    from kernel_selector.db import models, records

    from ..cost_model.stored_models import usable_model

    keys = {problem.key for problem in profiled}
    with store.read() as connection:
        model = usable_model(connection, OPERATOR)
        found = records.find(connection, operator=OPERATOR)
        newest = max((one.measured_at for one in found if one.problem.key in keys), default=None)
    if model is not None and (newest is None or newest <= model.created_at):
        yield TrainingFinished(fresh=False, seconds=0.0, evaluation=model.evaluation)
        return
    started = time.monotonic()
    yield TrainingStarted()
    from ..training.train import train  # imports scikit-learn, which takes seconds

    try:
        train(OPERATOR, store)
    except TooFewProblems as error:
        reason = f"{error.found}. Give a larger --budget or more --problems."
        yield TrainingFinished(
            fresh=False, seconds=time.monotonic() - started, evaluation=None, reason=reason
        )
        return
    with store.read() as connection:
        model = models.latest(connection, operator=OPERATOR)
    yield TrainingFinished(
        fresh=True,
        seconds=time.monotonic() - started,
        evaluation=model.evaluation if model is not None else None,
    )
