"""A fleet on a Slurm site: an array job, through submitit, each of whose elements is a worker with a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .launch import Setup, Source, work
from .local import Crew, FleetFailed, models_of
from .ray import INSTALL

CLUSTERS = ("slurm", "local", "debug")  # of submitit: the last two run here, for trying


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where and for how long: `folder` is seen by all nodes, and holds logs and what is to be run."""

    folder: Path
    cluster: str = "slurm"
    partition: str | None = None
    hours: float = 4.0


class SlurmWorker:
    """What an element of the array runs. Queued again by submitit when its time is up or it is preempted."""

    def __init__(self, source: Source, setup: Setup) -> None:
        self.source = source
        self.setup = replace(setup, until_empty=True)

    def __call__(self) -> dict[str, Any]:
        """Work until the queue is empty."""
        return work(self.source, self.setup).to_dict()

    def checkpoint(self) -> Any:
        """What submitit queues instead: the same again, since the state is in the database."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class SlurmFleet:
    """Workers that were submitted. Raises FleetFailed without submitit or without Slurm."""

    def __init__(self, crew: Crew, site: Site) -> None:
        executor = _executor(site)
        executor.update_parameters(**_parameters(crew, site))
        count = crew.workers or 1
        with executor.batch():
            self._jobs = [executor.submit(SlurmWorker(crew.source, crew.setup)) for _ in range(count)]

    def alive(self) -> int:
        """See Fleet."""
        ended = [job for job in self._jobs if job.done()]
        for job in ended:
            error = job.exception()
            if error is not None:
                raise FleetFailed(f"Worker {job.job_id} failed: {str(error).strip()[-500:]}")
        return len(self._jobs) - len(ended)

    def stop(self) -> None:
        """See Fleet."""
        for job in self._jobs:
            if not job.done():
                job.cancel()


def _executor(site: Site) -> Any:
    try:
        import submitit
    except ImportError as error:
        raise FleetFailed(f"submitit is not installed ({error}). {INSTALL}") from error
    try:
        return submitit.AutoExecutor(folder=site.folder, cluster=site.cluster)
    except RuntimeError as error:
        raise FleetFailed(f"Slurm cannot be used here ({error}): run this where `srun` is.") from error


def _parameters(crew: Crew, site: Site) -> dict[str, Any]:
    """What submitit asks Slurm for: of several kinds of GPU any, by constraints on nodes' features."""
    given: dict[str, Any] = {"name": "selector-worker", "timeout_min": max(1, round(60 * site.hours))}
    if site.cluster != "slurm":
        return given
    if set(crew.devices) - {"cpu"}:
        given["gpus_per_node"] = 1
    kinds = models_of(crew.devices)
    if kinds and "cuda" not in crew.devices:
        given["slurm_constraint"] = "|".join(kinds)
    if site.partition is not None:
        given["slurm_partition"] = site.partition
    return given
