"""Problems of a profiling request: a grid, random problems, a sweep, outliers, or logged questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from kernel_selector.kernels.contract import UnknownOperator
from selector.errors import InvalidRequest
from selector.profiling.profile import device_kind, opened
from selector.profiling.sweep import (
    PROBLEMS,
    Jobs,
    every_job,
    job,
    listed,
    logged_problems,
    named_operators,
    sweep_jobs,
)
from selector.workloads.published_models import layer_problems
from selector.workloads.sampling import grid, random_problems

LARGEST_GRID = 100_000  # problems
BATCHES = "8,16,32,64"  # of published models: two make a line of time and bytes over the batch


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """The arguments of the command `profile`, which stand for a list of problems.

    An `operator` with values in `given` stands for their grid; with a `count`, for random problems that have
    these values. `operators`, or one operator without values, stand for a sweep of `count` problems each.
    `outliers` are the measurements of these operators on the device that contradict the rest.
    `from_query_log` are the logged questions about the device. `models` are the layers of published models,
    at the batches in `given`.
    """

    operator: str | None = None
    given: Mapping[str, str]
    operators: str | None = None
    from_query_log: bool = False
    outliers: bool = False
    models: str | None = None
    count: int | None = None
    seed: int = 0
    device: str | None = None
    database: str | None = None

    def jobs(self) -> Jobs:
        """Problems with the implementations to run.

        Raises InvalidRequest for arguments that conflict or select nothing, and the errors of unknown names
        and values.
        """
        self._check()
        try:
            return self._jobs()
        except UnknownOperator:
            self._refuse_imported()
            raise

    def _jobs(self) -> Jobs:
        kind = device_kind(self.device)
        if self.from_query_log:
            return every_job(logged_problems(self.device, self.database))
        if self.models:
            problems = layer_problems(listed(self.models), self.given.get("batch", BATCHES))
            return [job(problem, index) for index, problem in enumerate(problems)]
        if self.outliers:
            return self._contradictory()
        if self.operators or (not self.given and self.count is None):
            names = named_operators(self._operators)
            return sweep_jobs(names, kind, count=self.count or PROBLEMS, seed=self.seed)
        operator = self.operator or "lstm"
        if self.count is None:
            return every_job(grid(operator, self.given))
        return every_job(random_problems(operator, kind, count=self.count, seed=self.seed, fixed=self.given))

    def _check(self) -> None:
        if self.operators and (self.operator or self.given):
            words = " ".join([*([self.operator] if self.operator else []), *self.given])
            raise InvalidRequest(
                f"--operator {self.operators} and {words}: a sweep draws its own problems; leave one out."
            )
        if self.models and (self.from_query_log or self.operators or self.operator or self.count):
            raise InvalidRequest(f"--model {self.models} measures all layers of it: leave the rest out.")
        if self.models and {*self.given} - {"batch"}:
            raise InvalidRequest(f"--model {self.models} takes batch={BATCHES} alone: leave the rest out.")
        if self.from_query_log and (self.operators or self.operator or self.given or self.count):
            raise InvalidRequest("--asked measures what was asked about: leave the rest out.")
        if self.outliers and (
            self.from_query_log or self.models or self.given or self.count or not self._operators
        ):
            raise InvalidRequest(
                "--doubtful measures again what contradicts the rest, of operators: name one, or "
                "--operator all, and leave the rest out."
            )
        if not (
            self.from_query_log or self.models or self.operators or self.operator or self.given or self.count
        ):
            raise InvalidRequest("Nothing to measure: name an operator, or --operator all for each of them.")
        size = prod(text.count(",") + 1 for text in self.given.values())
        if size > LARGEST_GRID and self.count is None:
            raise InvalidRequest(
                f"A grid of {size:,} problems, {size / 3600:,.0f} hours at a second each: expected at most "
                f"{LARGEST_GRID:,}. Give fewer values, or draw some of them with --count."
            )

    @property
    def _operators(self) -> str:
        return self.operators or self.operator or ""

    def _refuse_imported(self) -> None:
        """Raise InvalidRequest for an imported operator, which has no kernels to run here."""
        from kernel_selector.db import DatabaseError
        from selector.workloads.imported_operator import imported_operators

        try:
            with opened(self.database) as store, store.read() as connection:
                known = imported_operators(connection)
        except DatabaseError:
            return
        for name in listed(self._operators):
            if name in known:
                raise InvalidRequest(
                    f"{name} is imported: its kernels are elsewhere, and cannot be measured here. "
                    "Measure them there, and take that in with `selector import FILE`."
                )

    def _contradictory(self) -> Jobs:
        from selector.profiling.outliers import outlier_jobs

        with opened(self.database) as store:
            found = outlier_jobs(named_operators(self._operators), store, self.device)
        if not found:
            raise InvalidRequest(
                f"Nothing measured of {self._operators} contradicts the rest: there is nothing to "
                "measure again."
            )
        return found
