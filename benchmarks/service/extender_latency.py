"""Latency of the extender of Kubernetes' scheduler: python -m benchmarks.service.extender_latency [--pods N].

Starts `selector extender` on a free loopback port over the measurements that come with this package, and
asks `filter` and `prioritize` for pods, over one connection and one after the other, as the scheduler does;
in both forms, whole nodes and names alone; each pod with a problem that was not asked about before, and
again; at last, names alone, while measurements of each operator are added to the database once a second.
Writes percentiles of both calls together, and the slowest, to `benchmarks/results/extender_latency.json`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

from benchmarks.common.result import write_result
from benchmarks.common.serving import free_port, percentiles
from kernel_selector.db import Database, records
from kernel_selector.kernels.contract import Record
from kernel_selector.kernels.devices import known_devices
from kernel_selector.kernels.registry import operator, operators
from kernel_selector.service.scheduling.extender_arguments import ANNOTATION, PRODUCT_LABEL
from selector.selection.shipped import unpacked
from selector.workloads.sampling import random_problems

NODES = 100
PODS_PER_S = 10  # while the database is added to
START_S = 120.0


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=200, help="of each form")
    given = parser.parse_args()
    products = [device.name.replace(" ", "-") for device in known_devices().values() if device.kind == "cuda"]
    nodes = {f"node-{number:03}": products[number % len(products)] for number in range(NODES)}
    forms: dict[str, Callable[[], dict[str, Any]]] = {
        "whole_nodes": lambda: {"Nodes": {"metadata": {}, "items": [node(*one) for one in nodes.items()]}},
        "names": lambda: {"NodeNames": list(nodes)},
    }
    figures: dict[str, Any] = {}
    with own_database() as (path, stored), serving(nodes, path) as post:
        for seed, (name, form) in enumerate(forms.items()):
            new = random_problems("lstm", "cuda", count=given.pods + 20, seed=seed)
            pods = [pod(dict(problem.as_dict)) for problem in new]
            bodies = [json.dumps({"Pod": one, **form()}).encode() for one in pods]
            for body in bodies[given.pods :]:
                both(post, body)
            for words, some in (("new", bodies[: given.pods]), ("again", bodies[: given.pods])):
                figures[f"{name}_{words}"] = percentiles([both(post, body) for body in some], 2)
        new = random_problems("lstm", "cuda", count=given.pods, seed=len(forms))
        bodies = [json.dumps({"Pod": pod(dict(one.as_dict)), **forms["names"]()}).encode() for one in new]
        with added_to(path) as added:
            taken_ms = [both(post, body) for body in paced(bodies)]
        figures["names_new_while_added_to"] = {**percentiles(taken_ms, 2), "most_ms": round(max(taken_ms), 2)}
    print(json.dumps(figures, indent=2))
    result = {"nodes": NODES, "products": len(products), "pods": given.pods, "figures": figures}
    result |= {"own_records": stored, "added": len(added)}
    print(write_result("extender_latency", result))


def pod(hyperparameters: dict[str, Any]) -> dict[str, Any]:
    """A pod that says what its layer is."""
    problem = {"operator": operator("lstm").name, "hyperparameters": hyperparameters}
    return {"metadata": {"name": "pod", "annotations": {ANNOTATION: json.dumps(problem)}}}


def node(name: str, product: str) -> dict[str, Any]:
    """A node, about as long as a real one."""
    labels = {PRODUCT_LABEL: product, **{f"example.com/label-{number}": "value" * 8 for number in range(20)}}
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": {"capacity": {"cpu": "64"}}}


def both(post: Callable[[str, bytes], Any], body: bytes) -> float:
    """Milliseconds of filter and prioritize for a pod; checks that they answer."""
    started = time.perf_counter()
    kept, scores = post("filter", body), post("prioritize", body)
    spent_ms = (time.perf_counter() - started) * 1e3
    if kept["Error"] or len(scores) != NODES:
        raise SystemExit(f"{kept['Error']}; {len(scores)} scores")
    return spent_ms


def paced(bodies: list[bytes]) -> Iterator[bytes]:
    """Bodies of pods that come one after the other, PODS_PER_S in a second."""
    for body in bodies:
        time.sleep(1 / PODS_PER_S)
        yield body


@contextmanager
def own_database() -> Iterator[tuple[Path, int]]:
    """A database that has what ships as if it had been measured here, and the number of its records."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copy(unpacked(), Path(folder) / "own.sqlite"))
        path.chmod(0o600)
        with Database.open(path) as database, database.read() as connection:
            yield path, records.total(connection)


@contextmanager
def added_to(path: Path) -> Iterator[list[Record]]:
    """Records that are added to a database beside the block, one of each operator once a second."""
    added: list[Record] = []
    ended = Event()

    def add() -> None:
        with Database.open(path) as database:
            with database.read() as connection:
                known = [
                    one for name in operators() for one in records.find(connection, operator=name, limit=1)
                ]
            while not ended.wait(1.0):
                new = [replace(one, seed=1 + len(added), measured_at=datetime.now(UTC)) for one in known]
                with database.write() as connection:
                    records.add(connection, new)
                added.extend(new)

    thread = Thread(target=add)
    thread.start()
    try:
        yield added
    finally:
        ended.set()
        thread.join()


@contextmanager
def serving(nodes: dict[str, str], database: Path) -> Iterator[Callable[[str, bytes], Any]]:
    """A function that posts to the extender, in a process of its own that ends with the block."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "nodes.json"
        table.write_text(json.dumps(nodes))
        command = [sys.executable, "-m", "kernel_selector.service.cli", "extender", "--port", str(port)]
        command += ["--nodes", str(table), "--database", str(database), "--no-shipped"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        connection = http.client.HTTPConnection("127.0.0.1", port)

        def post(verb: str, body: bytes) -> Any:
            connection.request("POST", f"/k8s/v1/{verb}", body, {"content-type": "application/json"})
            return json.loads(connection.getresponse().read())

        try:
            deadline = time.monotonic() + START_S
            while not answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the extender did not start")
                time.sleep(0.1)
            yield post
        finally:
            connection.close()
            process.terminate()
            process.wait()


def answers(port: int) -> bool:
    """Whether something listens there."""
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    main()
