"""Latency of the extender of Kubernetes' scheduler: python -m benchmarks.service.extender_latency [--pods N].

Starts `selector extender` on a free loopback port over the measurements that come with this package, and
asks `filter` and `prioritize` for pods, over one connection and one after the other, as the scheduler does;
in both forms, whole nodes and names alone; each pod with a problem that was not asked about before, and
again. Writes percentiles of both calls together to `benchmarks/results/extender_latency.json`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common.result import write_result
from benchmarks.common.serving import free_port, percentiles
from kernel_selector.kernels.devices import known_devices
from kernel_selector.kernels.registry import operator
from kernel_selector.service.scheduling.extender_arguments import ANNOTATION, PRODUCT_LABEL
from selector.selection.shipped import unpacked
from selector.workloads.sampling import random_problems

NODES = 100
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
    with serving(nodes) as post:
        for seed, (name, form) in enumerate(forms.items()):
            new = random_problems("lstm", "cuda", count=given.pods + 20, seed=seed)
            pods = [pod(dict(problem.as_dict)) for problem in new]
            bodies = [json.dumps({"Pod": one, **form()}).encode() for one in pods]
            for body in bodies[given.pods :]:
                both(post, body)
            for words, some in (("new", bodies[: given.pods]), ("again", bodies[: given.pods])):
                figures[f"{name}_{words}"] = percentiles([both(post, body) for body in some], 2)
    print(json.dumps(figures, indent=2))
    result = {"nodes": NODES, "products": len(products), "pods": given.pods, "figures": figures}
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


@contextmanager
def serving(nodes: dict[str, str]) -> Iterator[Callable[[str, bytes], Any]]:
    """A function that posts to the extender, in a process of its own that ends with the block."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "nodes.json"
        table.write_text(json.dumps(nodes))
        command = [sys.executable, "-m", "kernel_selector.service.cli", "extender", "--port", str(port)]
        command += ["--nodes", str(table), "--database", str(unpacked()), "--no-shipped"]
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
