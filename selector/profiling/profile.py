"""Profiling of problems into the database: resumable, within a time budget, with progress events.

Each problem's records are stored in one transaction as soon as they exist, and whatever ends a run early
(the budget, Ctrl-C, an error) stores what was measured until then. The next run skips it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.kernels.contract.record import LAUNCHED

from ..selection.database import require_database
from ..selection.devices import LOCAL, default_torch_device, named
from .events import (
    CandidateMeasured,
    Event,
    ProblemStarted,
    ProblemStored,
    ProfilingFinished,
    ProfilingStarted,
)
from .run import Run, measure_into, missing

if TYPE_CHECKING:
    from kernel_selector.db import Database
    from kernel_selector.kernels.measure import Policy, Session
    from kernel_selector.kernels.measure.jobs import Job

__all__ = [
    "CandidateMeasured",
    "Event",
    "ProblemStarted",
    "ProblemStored",
    "ProfilingFinished",
    "ProfilingStarted",
    "device_kind",
    "measure_into",
    "missing",
    "open_session",
    "opened",
    "policy_named",
    "profile",
    "profile_with",
    "session",
    "sweep",
]


def profile(
    operator: str,
    problems: Sequence[Problem],
    *,
    device: str | None = None,
    database: Database | str | Path | None = None,
    policy: str | Policy = "quick",
    budget_s: float | None = None,
    again: bool = False,
) -> Iterator[Event]:
    """Progress events of measuring all implementations of `operator` on problems without finished records.

    Parameters
    ----------
    operator : str
    problems : sequence of Problem
    device : str, optional
        Torch device ("cpu", "cuda:0"); this machine's default when None.
    database : Database, URL or path, optional
        Made when missing.
    policy : Policy
    budget_s : float, optional
        Seconds; no problem starts that is expected to end later.
    again : bool
        Measure also candidates with finished records. The newer records count, and the older ones stay.

    Raises
    ------
    UnknownOperator, DatabaseError, MeasurementFailed
    """
    registry.operator(operator)
    with session(device, policy) as measuring, opened(database, create=True) as store:
        yield from profile_with(
            operator, problems, store=store, measuring=measuring, budget_s=budget_s, again=again
        )


def sweep(
    jobs: Sequence[Job],
    *,
    device: str | None = None,
    database: Database | str | Path | None = None,
    policy: str | Policy = "quick",
    budget_s: float | None = None,
    again: bool = False,
    active: bool = False,
) -> Iterator[Event]:
    """Progress events, as of `profile`, of jobs of any operators, each with its implementations.

    active: take the problems in the order in which their choice is uncertain, run on each who may be the
    fastest, and end when nothing is uncertain any more.
    """
    with session(device, policy) as measuring, opened(database, create=True) as store:
        run = Run(store, measuring, budget_s, again=again, active=active)
        yield from run.events(jobs)


def profile_with(
    operator: str,
    problems: Sequence[Problem],
    *,
    store: Database,
    measuring: Session,
    budget_s: float | None = None,
    again: bool = False,
) -> Iterator[Event]:
    """Progress events, as of `profile`, with an open database and measuring session."""
    from kernel_selector.kernels.measure.jobs import Job

    names = tuple(registry.implementations(operator))
    jobs = [Job(problem, names) for problem in problems]
    return Run(store, measuring, budget_s, again=again).events(jobs)


@contextmanager
def opened(
    database: Database | str | Path | None, *, create: bool = False, otherwise: str = ""
) -> Iterator[Database]:
    """Open database, closed at the end of the block unless it was open before.

    `create` makes it when it is missing, and refuses at once one that cannot be written: better than
    after the first measurement. `otherwise` is what to do where it is missing, and making one is no way.
    """
    from kernel_selector.db import Database

    require_database(database)
    if isinstance(database, Database):
        store = database
    else:
        store = Database.open(database, create=create, otherwise=otherwise)
    try:
        if create:
            with store.write():
                pass
        yield store
    finally:
        if store is not database:
            store.close()


@contextmanager
def session(device: str | None, policy: str | Policy = "quick") -> Iterator[Session]:
    """Measuring session on a torch device, the machine's default when None; closed at the end."""
    with open_session(device, policy) as measuring:
        yield measuring


def open_session(device: str | None, policy: str | Policy = "quick") -> Session:
    """Measuring session, as of `session`, that the caller closes. Raises the error of an unknown policy."""
    from kernel_selector.kernels import measure

    chosen = policy_named(policy) if isinstance(policy, str) else policy
    return measure.Session(device or default_torch_device(), policy=chosen)


def policy_named(name: str, regime: str = LAUNCHED) -> Policy:
    """Measuring policy of this name, for a regime. Raises the errors of unknown ones, with the known."""
    from kernel_selector.kernels import measure

    return measure.policy(name).in_regime(regime)


def device_kind(device: str | None) -> str:
    """Kind, "cpu" or "cuda", of a torch device, of a known device by name, or of this machine's default.

    It need not be here: a plan may be for another machine. Raises UnknownDevice.
    """
    name = device or default_torch_device()
    return name.partition(":")[0] if LOCAL.fullmatch(name) else named(name, ()).kind
