"""The profiling jobs to look at now: those that have not ended, then the latest of the others."""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels.contract import SelectorError

from .jobs import described

if TYPE_CHECKING:
    from .engine import Selector

SHOWN = 20
LEAST_AGE_S = 2.0  # how old a reading may be before there is another
BACK_OFF = 9  # times as long as a reading took there is no other: it costs a tenth of the time


class JobsCache:
    """The jobs in a selector's database, read again when somebody asks. Safe to share among threads."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._lock = Lock()
        self._jobs: list[dict[str, Any]] | None = None
        self._due = 0.0

    def jobs(self) -> list[dict[str, Any]]:
        """At most SHOWN, each as `get_job` gives it, as of now or a moment ago.

        Raises the errors of the database when it could never be read.
        """
        first = self._jobs is None
        if (first or time.monotonic() >= self._due) and self._lock.acquire(blocking=first):
            started = time.monotonic()
            try:
                if self._jobs is None or not first:  # else another thread read while this one waited
                    self._jobs = self._read()
            except SelectorError:
                if first:
                    raise  # else what was read before goes on, and the selector's status has the trouble
            finally:
                ended = time.monotonic()
                self._due = ended + max(LEAST_AGE_S, BACK_OFF * (ended - started))
                self._lock.release()
        return self._jobs or []

    def _read(self) -> list[dict[str, Any]]:
        from kernel_selector.db import jobs_listing

        with self._selector.database.read() as connection:
            return [described(job) for job in jobs_listing.latest(connection, limit=SHOWN)]
