"""Tasks lost or repeated by faults: python -m benchmarks.service.queue_faults [--tasks N] [--outages N].

A profiling job of short tasks, eight workers, half of them over two services, and a kill -9 of a worker or of
a service every now and then. Measuring is pretended; claims, leases, heartbeats, records and ends are real.
At the end each task must be finished, and each problem measured, exactly once. The database is a PostgreSQL
server of the benchmark's own, which fails `--outages` times, shut down without a checkpoint and killed in
turns, and is started again seconds later; or that of `--database`, which does not fail. Writes
`benchmarks/results/queue_faults.json`, also when the time limit ends the run before its tasks.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from benchmarks.common.postgres import IMMEDIATE, KILL, Server, running
from benchmarks.common.result import write_result
from benchmarks.common.serving import free_port
from kernel_selector.db import Database, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem
from kernel_selector.service.fleet.jobs import JobRequest, create_job, get_job
from kernel_selector.service.fleet.launch import Source
from kernel_selector.service.tokens import create_token
from tests.service.fleet.queue_workers import start

WORKERS, SERVICES = 8, 2
IMPLEMENTATION = "torch_lstm"
TASK_S = 0.005  # that a pretended measurement takes
LEASE_S = 2.0
OUTAGE_S = 3.0
PRELOADED = [
    "tests.service.fleet.queue_workers",
    "kernel_selector.db",
    "kernel_selector.service.app",
    "uvicorn",
]


def main() -> None:
    """Run it and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--pause", type=float, default=0.5, help="mean seconds between kills")
    parser.add_argument("--limit", type=float, default=900, help="seconds after which the run ends")
    parser.add_argument("--outages", type=int, default=4, help="of the benchmark's own server")
    parser.add_argument("--database", help="URL or path in place of a server of the benchmark's own")
    options = parser.parse_args()
    faults = Faults(options.pause, options.limit, 0 if options.database else options.outages)
    with (
        nullcontext() if options.database else running() as server,
        Database.open(options.database or server.url, create=True) as store,
    ):
        result = run(store, options.tasks, faults, server)
    print(json.dumps(result, indent=2))
    print(write_result("queue_faults", result, torch_device="cpu"))


@dataclass(frozen=True)
class Faults:
    """Timing of the faults: seconds between kills, the end of the run, and how often the server fails."""

    pause_s: float
    limit_s: float
    outages: int


def run(store: Database, tasks: int, faults: Faults, server: Server | None) -> dict[str, Any]:
    """Work off a job of so many tasks under faults, and count what became of them."""
    request = JobRequest(
        operator="lstm",
        problems=problems(tasks),
        devices=["cpu"],
        implementations=[IMPLEMENTATION],
        max_attempts=100,
    )
    number = create_job(store, request, author="benchmark")[0]["id"]
    token = create_token(store, f"worker-{number}", scopes=["measure"])
    processes = Processes(store.url, token)
    started = time.monotonic()
    try:
        processes.start()
        job = afflict(processes, lambda: get_job(store, number), faults, server)
        seconds = time.monotonic() - started
    finally:
        processes.stop()
    with store.read() as connection:
        measured = Counter(record.problem.key for record in records.find(connection))
    wanted = {problem.key for problem in request.problems}
    return {
        "database": store.url.split(":")[0],
        "tasks": tasks,
        "workers": WORKERS,
        "services": SERVICES,
        "kills_of_workers": processes.kills["worker"],
        "kills_of_services": processes.kills["service"],
        "outages_of_the_database": processes.kills["database"],
        "lease_s": LEASE_S,
        "seconds": round(seconds, 1),
        "tasks_per_s": round(job["tasks"]["done"] / seconds, 1),
        "states": job["tasks"],
        "lease_expiries": _expiries(store),
        "measured_exactly_once": sum(measured[key] == 1 for key in wanted),
        "measured_more_than_once": sum(measured[key] > 1 for key in wanted),
        "never_measured": sum(not measured[key] for key in wanted),
    }


def afflict(
    processes: Processes, look: Callable[[], dict[str, Any]], faults: Faults, server: Server | None
) -> dict[str, Any]:
    """Kill now and then until the job that `look` gives has ended, or the time has; its last state."""
    draw, deadline = random.Random(0), time.monotonic() + faults.limit_s
    while (job := look())["state"] in ("queued", "running") and time.monotonic() < deadline:
        time.sleep(draw.uniform(0.5, 1.5) * faults.pause_s)
        outages = processes.kills["database"]
        part = job["tasks"]["done"] / sum(job["tasks"].values())
        if server is not None and outages < faults.outages and part > (outages + 0.5) / faults.outages:
            server.fail((IMMEDIATE, KILL)[outages % 2])
            time.sleep(OUTAGE_S)
            server.start()
            processes.kills["database"] += 1
        processes.kill(draw)
    return job


def problems(count: int) -> list[Problem]:
    """`count` different problems."""
    lstm = registry.operator("lstm")
    return [lstm.problem(hidden=1 + index % 4096, batch=1 + index // 4096) for index in range(count)]


def serve(url: str, port: int) -> None:
    """A service in a process of its own."""
    import uvicorn

    from kernel_selector.service.app import create_app
    from kernel_selector.service.settings import Settings
    from selector import Selector

    application = create_app(Selector(url), settings=Settings(access_log=False))
    uvicorn.run(application, host="127.0.0.1", port=port, log_level="critical")


@dataclass
class Processes:
    """Services and workers, each started again when it has been killed."""

    url: str
    token: str
    kills: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        folder = f"{registry.__package__}.{registry.FOLDER.name}.lstm"
        layers = [f"{folder}.{name}" for name in registry.implementations("lstm")]
        self._context.set_forkserver_preload([*PRELOADED, *layers])
        self._ports = [free_port() for _ in range(SERVICES)]
        self._started = 0
        self._services: list[Any] = []
        self._workers: list[Any] = []

    def start(self) -> None:
        """Start all of them."""
        self._services = [self._service(port) for port in self._ports]
        self._workers = [self._worker(index) for index in range(WORKERS)]

    def kill(self, draw: random.Random) -> None:
        """Kill one, usually a worker, and start again what is dead."""
        kind = "service" if draw.random() < 0.1 else "worker"
        victim = draw.choice(self._services if kind == "service" else self._workers)
        if victim.is_alive():
            victim.kill()
            victim.join()
            self.kills[kind] += 1
        for index, process in enumerate(self._services):
            if not process.is_alive():
                self._services[index] = self._service(self._ports[index])
        for index, process in enumerate(self._workers):
            if not process.is_alive():
                self._workers[index] = self._worker(index)

    def stop(self) -> None:
        """End all of them."""
        for process in (*self._workers, *self._services):
            process.kill()
            process.join()

    def _service(self, port: int) -> Any:
        process = self._context.Process(target=serve, args=(self.url, port))
        process.start()
        return process

    def _worker(self, index: int) -> Any:
        """Every other one has the database, the rest a service."""
        source = Source(database=self.url)
        if index % 2:
            source = Source(
                service=f"http://127.0.0.1:{self._ports[index // 2 % SERVICES]}", token=self.token
            )
        self._started += 1
        return start(self._context, source, f"w{self._started}", LEASE_S, TASK_S)


def _expiries(store: Database) -> int:
    from kernel_selector.service.fleet.jobs import queue_depth

    return queue_depth(store)[1]


if __name__ == "__main__":
    main()
