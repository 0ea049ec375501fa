"""Fleet on a Ray cluster: one Ray task a GPU, placed by accelerator type and retried by Ray."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from selector.selection.devices import RAY_LABEL

from .launch import WorkerSetup, work
from .local import FleetFailed, FleetSpec, models_of

REACH_S = 10.0  # for somebody to answer at an address
INSTALL = "Install it, on every node: pip install 'kernel-selector[fleet]'."


@contextmanager
def ray_fleet(spec: FleetSpec, address: str) -> Iterator[RayFleet]:
    """Context with a fleet on the cluster at an address ("local": a cluster started here).

    Raises FleetFailed without Ray, without an answer, and when no node has a device of the job.
    """
    ray = _ray()
    try:
        _reach(address)
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except Exception as error:
        raise FleetFailed(
            f"No Ray cluster answers at {address} ({error}): start one with `ray start`."
        ) from error
    try:
        fleet = RayFleet(ray, spec)
        try:
            yield fleet
        finally:
            fleet.stop()
    finally:
        ray.shutdown()


class RayFleet:
    """Workers on a connected Ray cluster."""

    def __init__(self, ray: Any, spec: FleetSpec) -> None:
        self._ray = ray
        places = placements(ray.nodes(), spec.devices)
        if not places:
            known = sorted({node["Labels"].get(RAY_LABEL, "no GPU") for node in ray.nodes() if node["Alive"]})
            raise FleetFailed(
                f"The job needs {', '.join(spec.devices)}, and the cluster's nodes have: {', '.join(known)}. "
                "Add a node with such a device, or give the job another one."
            )
        # Ray repeats a task whose process or node is gone; what kills its workers is given up by the database
        remote = ray.remote(max_retries=-1)(work)
        self._grace_s = spec.setup.grace_s
        self._waiting = [
            remote.options(**options).remote(spec.source, _worker_setup(spec.setup, options))
            for options in places[: spec.workers]
        ]

    def alive(self) -> int:
        """See Fleet."""
        if not self._waiting:
            return 0
        ended, self._waiting = self._ray.wait(self._waiting, num_returns=len(self._waiting), timeout=0)
        try:
            self._ray.get(ended)
        except self._ray.exceptions.RayError as error:
            raise FleetFailed(f"A worker ended with an error: {error}") from error
        return len(self._waiting)

    def stop(self) -> None:
        """See Fleet."""
        for reference in self._waiting:
            self._ray.cancel(reference)
        if self._waiting:
            self._ray.wait(self._waiting, num_returns=len(self._waiting), timeout=self._grace_s)


def placements(nodes: list[dict[str, Any]], devices: tuple[str, ...]) -> list[dict[str, Any]]:
    """Ray options of each worker: one for each GPU of a wanted kind, one for each node's CPU.

    A worker is bound to a kind, not to a node: when its node is gone, Ray finds another.
    """
    models = models_of(devices)
    found: list[dict[str, Any]] = []
    for node in nodes:
        if not node["Alive"]:
            continue
        label = node["Labels"].get(RAY_LABEL)
        gpus = int(node["Resources"].get("GPU", 0))
        if label is not None and label.lower() in models:
            found += [{"num_gpus": 1, "num_cpus": 1, "label_selector": {RAY_LABEL: label}}] * gpus
        elif "cuda" in devices:
            found += [{"num_gpus": 1, "num_cpus": 1}] * gpus
        if "cpu" in devices:
            # all cores: two measurements at once on one processor would disturb each other
            found.append({"num_cpus": node["Resources"].get("CPU", 1)})
    return found


def _worker_setup(setup: WorkerSetup, options: dict[str, Any]) -> WorkerSetup:
    """Settings of a worker in a Ray task, which sees only its own GPU as the first one."""
    device = setup.device or ("cuda:0" if "num_gpus" in options else "cpu")
    return replace(setup, device=device, until_empty=True)


def _reach(address: str) -> None:
    """Raise OSError where nothing listens at host:port: Ray itself retries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S):
            pass


def _ray() -> Any:
    # it would report the use of the cluster to its makers
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise FleetFailed(f"Ray is not installed ({error}). {INSTALL}") from error
    return ray
