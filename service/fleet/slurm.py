"""Fleet on a Slurm site: an array job through submitit, one worker with a GPU for each element."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .launch import Source, WorkerSetup, work
from .local import FleetFailed, FleetSpec, models_of
from .ray import INSTALL

CLUSTERS = ("slurm", "local", "debug")  # of submitit: the last two run here, for trying


@dataclass(frozen=True, kw_only=True)
class SlurmSite:
    """Settings of a Slurm job: its time, and a `folder` seen by all nodes for logs and code."""

    folder: Path
    cluster: str = "slurm"
    partition: str | None = None
    hours: float = 4.0


class SlurmWorker:
    """Function of one array element. Submitit requeues it after a timeout or preemption."""

    def __init__(self, source: Source, setup: WorkerSetup) -> None:
        self.source = source
        self.setup = replace(setup, until_empty=True)

    def __call__(self) -> dict[str, Any]:
        """Work until the queue is empty."""
        return work(self.source, self.setup).to_dict()

    def checkpoint(self) -> Any:
        """Submission for submitit's requeue: the same function, because the state is in the database."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class SlurmFleet:
    """Submitted workers.

    Raises FleetFailed without submitit or without Slurm.
    """

    def __init__(self, spec: FleetSpec, slurm_site: SlurmSite) -> None:
        executor = _executor(slurm_site)
        executor.update_parameters(**_parameters(spec, slurm_site))
        count = spec.workers or 1
        with executor.batch():
            self._jobs = [executor.submit(SlurmWorker(spec.source, spec.setup)) for _ in range(count)]

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


def _executor(slurm_site: SlurmSite) -> Any:
    try:
        import submitit
    except ImportError as error:
        raise FleetFailed(f"submitit is not installed ({error}). {INSTALL}") from error
    try:
        return submitit.AutoExecutor(folder=slurm_site.folder, cluster=slurm_site.cluster)
    except RuntimeError as error:
        raise FleetFailed(f"Slurm cannot be used here ({error}): run this where `srun` is.") from error


def _parameters(spec: FleetSpec, slurm_site: SlurmSite) -> dict[str, Any]:
    """Submitit parameters; several kinds of GPU become a constraint on node features."""
    given: dict[str, Any] = {"name": "selector-worker", "timeout_min": max(1, round(60 * slurm_site.hours))}
    if slurm_site.cluster != "slurm":
        return given
    if set(spec.devices) - {"cpu"}:
        given["gpus_per_node"] = 1
    kinds = models_of(spec.devices)
    if kinds and "cuda" not in spec.devices:
        given["slurm_constraint"] = "|".join(kinds)
    if slurm_site.partition is not None:
        given["slurm_partition"] = slurm_site.partition
    return given
