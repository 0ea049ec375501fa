"""Fleets of workers, one for each GPU: on this machine, a Ray cluster, or a Slurm site.

Only processes and their places come from those. Tasks and records go through the database, so whatever of a
fleet is killed, what was stored stays, and starting the fleet again goes on with the rest.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from kernel_selector.kernels.contract import Device
from selector.errors import InvalidRequest
from selector.profiling.profile import opened

from .jobs import KINDS, get_job
from .launch import Source, WorkerSetup, work

if TYPE_CHECKING:
    from kernel_selector.db import Database

LOOK_S = 2.0  # between looks at the job
MOST_RESTARTS = 10  # of a local worker's process that dies
ENDED = ("done", "failed", "cancelled")


class FleetFailed(InvalidRequest):
    """Fleet that cannot start, or that has no place for its workers."""


class Fleet(Protocol):
    """Protocol of started workers."""

    def alive(self) -> int:
        """Number of workers that run or wait for a place.

        Raises FleetFailed when they cannot go on.
        """

    def stop(self) -> None:
        """Stop the workers after they have stored their records."""


@dataclass(frozen=True, kw_only=True)
class FleetSpec:
    """Settings of a fleet: task source, worker settings, devices, and number of workers (None: one for
    each GPU).

    `devices` are those of the job: keys, "cpu" or "cuda".
    """

    source: Source
    setup: WorkerSetup
    devices: tuple[str, ...]
    workers: int | None = None


def follow(
    fleet: Fleet, database: str | None, job: int, report: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Job after it has ended; `report` gets each change.

    Raises FleetFailed when all workers end before it.
    """
    last: dict[str, Any] | None = None
    with opened(database) as store:
        while True:
            alive = fleet.alive()
            found = get_job(store, job)
            if found != last:
                report(found)
            last = found
            if found["state"] in ENDED:
                return found
            if not alive:
                raise FleetFailed(
                    f"All workers have ended, and job {job} has not: {found['tasks']}. What is left needs a "
                    f"device that none of them has: {', '.join(found['devices'])}. Start a fleet where it is."
                )
            time.sleep(LOOK_S)


def shared(database: str | None, *, elsewhere: bool) -> Source:
    """Source for workers with the database's full URL; `elsewhere`: on other machines.

    Raises FleetFailed for a file where other machines must reach it.
    """
    with opened(database, create=True) as store:
        if elsewhere and _is_file(store):
            raise FleetFailed(
                f"{store.location} is a file of this machine, which workers on others cannot use: give a "
                "PostgreSQL database, --database postgresql://user@host/name."
            )
        return Source(database=store.url)


class LocalFleet:
    """Worker processes on this machine, one for each GPU or one for the CPU; a dead one is restarted."""

    def __init__(self, spec: FleetSpec) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._setups = [replace(spec.setup, device=device, until_empty=True) for device in _places(spec)]
        self._source = spec.source
        self._restarts = 0
        self._processes = [self._start(setup) for setup in self._setups]

    def alive(self) -> int:
        """See Fleet."""
        for index, process in enumerate(self._processes):
            if process.exitcode in (None, 0):
                continue
            self._restarts += 1
            if self._restarts > MOST_RESTARTS:
                raise FleetFailed(
                    f"Workers of this machine have died {self._restarts} times, last with exit code "
                    f"{process.exitcode}: `selector worker` says why."
                )
            self._processes[index] = self._start(self._setups[index])
        return sum(process.is_alive() for process in self._processes)

    def stop(self) -> None:
        """See Fleet."""
        for process in self._processes:
            if process.is_alive():
                process.terminate()
        for process in self._processes:
            process.join()

    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [process.pid for process in self._processes if process.pid is not None]

    def _start(self, setup: WorkerSetup) -> Any:
        process = self._context.Process(target=work, args=(self._source, setup))
        process.start()
        return process


def models_of(devices: Sequence[str]) -> list[str]:
    """Cluster names of the GPUs of device keys, in lower case: `h200` for `nvidia-h200-nvl`."""
    keys = [key for key in devices if key not in KINDS]
    return list(dict.fromkeys(Device(name=key, kind="cuda").model.lower() for key in keys))


@contextmanager
def stopped(fleet: Fleet) -> Iterator[Fleet]:
    """Context that stops the fleet at its end."""
    try:
        yield fleet
    finally:
        fleet.stop()


def _places(spec: FleetSpec) -> list[str]:
    """Torch devices of this machine for the workers."""
    from selector.selection.devices import local_names

    gpus = [name for name in local_names() if name != "cpu"]
    found = [*(gpus if set(spec.devices) - {"cpu"} else ()), *(["cpu"] if "cpu" in spec.devices else ())]
    if not found:
        raise FleetFailed(f"The job needs {', '.join(spec.devices)}, and this machine has no GPU.")
    return found[: spec.workers]


def _is_file(store: Database) -> bool:
    return store.stamp() is not None
