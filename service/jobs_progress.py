"""The profiling jobs to look at now: those that have not ended, then the latest of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selector.jobs import described

from .cached import Kept

if TYPE_CHECKING:
    from selector.engine import Selector

SHOWN = 20
LEAST_AGE_S = 2.0  # how old a reading may be before there is another


class JobsCache:
    """The jobs in a selector's database, read again when somebody asks. Safe to share among threads."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._kept = Kept(self._read)

    def jobs(self) -> list[dict[str, Any]]:
        """At most SHOWN, each as `get_job` gives it, as of now or a moment ago.

        Raises the errors of the database when it could never be read.
        """
        # whether jobs have changed is not known without reading them
        return self._kept.value(object(), LEAST_AGE_S)

    def _read(self) -> list[dict[str, Any]]:
        from kernel_selector.db import jobs_listing

        with self._selector.database.read() as connection:
            return [described(job) for job in jobs_listing.latest(connection, limit=SHOWN)]
