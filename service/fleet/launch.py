"""Worker assembly: task source, measuring device, and shutdown by signals."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from kernel_selector.kernels.contract.errors import shorten
from selector.errors import InvalidRequest
from selector.profiling.profile import open_session, opened
from selector.selection.client import Client
from selector.selection.database import named_database

from .queue import LONGEST_LEASE_S, SHORTEST_LEASE_S, DatabaseQueue, Queue
from .service_queue import ServiceQueue
from .worker import LEASE_S, Interrupted, Measuring, Tally, Worker

GRACE_S = 20.0  # after the first signal, for the measurement at hand; clusters wait 30 s before they kill
UPLOAD_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Source:
    """Source of tasks: a service's URL with a token, else a database (None: the user's own)."""

    service: str | None = None
    token: str | None = None
    database: str | None = None

    def __post_init__(self) -> None:
        if self.service is not None and self.database is not None:
            raise InvalidRequest(
                f"service={shorten(self.service)}, database={shorten(self.database)}: expected one of them."
            )


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """Settings of a worker: torch device (None: the machine's default), name, lease in seconds.

    `until_empty`: it ends when all tasks for its device have. It gives the last measurement `grace_s` seconds
    when it is told to stop.
    """

    device: str | None = None
    name: str | None = None
    lease_s: float = LEASE_S
    until_empty: bool = False
    grace_s: float = GRACE_S

    def __post_init__(self) -> None:
        if not SHORTEST_LEASE_S <= self.lease_s <= LONGEST_LEASE_S:
            span = f"{SHORTEST_LEASE_S:g} to {LONGEST_LEASE_S:g}"
            raise InvalidRequest(f"lease_s={self.lease_s}: expected {span} seconds.")


def work(source: Source, setup: WorkerSetup, *, report: Callable[[str], None] = lambda _: None) -> Tally:
    """Tally of a worker that runs until SIGTERM, SIGINT or the end of its tasks.

    Raises UnknownDevice, ServiceError and the errors of the database.
    """
    with queue_of(source) as queue:
        worker = Worker(queue, sessions(setup.device), name=setup.name, lease_s=setup.lease_s, report=report)
        with stopped_by_signals(worker, setup.grace_s):
            return worker.run(until_empty=setup.until_empty)


@contextmanager
def queue_of(source: Source) -> Iterator[Queue]:
    """Queue of a source, closed at the end of the block.

    The user's own database is made where it is missing. Raises DatabaseMissing for one that was named and is
    not there: nobody puts tasks into what a misspelt name would make.
    """
    if source.service is not None:
        queue = ServiceQueue(Client(source.service, token=source.token, timeout_s=UPLOAD_TIMEOUT_S))
        try:
            yield queue
        finally:
            queue.close()
        return
    named = named_database(source.database)
    with opened(named, create=named is None) as store:
        yield DatabaseQueue(store)


def sessions(device: str | None) -> Callable[[str], Measuring]:
    """Function that opens a measuring session on a torch device (None: the machine's default) by policy
    name.
    """
    return partial(open_session, device)


@contextmanager
def stopped_by_signals(worker: Worker, grace_s: float) -> Iterator[None]:
    """Context in which SIGTERM or SIGINT stops the worker: the first after its measurement, a second one
    or `grace_s` at once.

    Only the main thread gets signals: elsewhere this does nothing, and `Worker.stop` is there.
    """
    told = False

    def stop(_: int, __: Any) -> None:
        nonlocal told
        if told:
            raise Interrupted("The worker was told to stop at once.")
        told = True
        worker.stop()
        signal.setitimer(signal.ITIMER_REAL, grace_s)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    try:
        before = {number: signal.signal(number, stop) for number in numbers}
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
