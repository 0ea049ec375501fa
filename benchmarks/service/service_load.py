"""Cost of the service: python -m benchmarks.service.service_load [--requests N] [--database FILE].

Processor time of the server for each `POST /v1/choices` of a known problem, beside that of the least FastAPI
route that takes and gives JSON, in the same run; of both, requests per second and latency at 16 connections;
`choices:batch` with 500 problems that were not asked before. Writes `benchmarks/results/service_load.json`.
Client and server share the machine's cores, so times of the clock are upper bounds; processor times are not
touched by that.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.common.result import write_result
from benchmarks.common.serving import OURS, Server, serving
from selector.selection.shipped import unpacked

TRIVIAL = """
from fastapi import FastAPI
from pydantic import BaseModel
app = FastAPI()
class Question(BaseModel):
    hyperparameters: dict
@app.post("/v1/choices")
async def choose(question: Question) -> dict:
    return {"ok": True}
@app.get("/healthz")
async def health() -> dict:
    return {"ok": True}
"""
LAYER = {"operator": "lstm", "hyperparameters": {"hidden": 256, "batch": 32}}
CONNECTIONS = 16
BATCH = 500
LEARNING, BATCHES = 8, 60


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--database", help="file to ask, not written to; default: the measurements that ship")
    parser.add_argument("--device", default="h200", help="to ask about (default h200)")
    given = parser.parse_args()
    database = given.database or str(unpacked())
    question = json.dumps({**LAYER, "device": given.device})
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "trivial_app.py").write_text(TRIVIAL)
        with (
            serving(["--app-dir", folder, "trivial_app:app"]) as trivial,
            serving(OURS, database) as ours,
        ):
            # in turns, so that drift of the machine hits both alike
            part = given.requests // 4
            pairs = [(cpu_us(trivial, question, part), cpu_us(ours, question, part)) for _ in range(4)]
            figures["trivial_cpu_us"] = statistics.median(one for one, _ in pairs)
            figures["choice_cpu_us"] = statistics.median(other for _, other in pairs)
            figures["cpu_ratio"] = statistics.median(other / one for one, other in pairs)
            least = at_once(trivial, question, given.requests)
            figures |= at_once(ours, question, given.requests)
            figures |= {f"trivial_{name}": value for name, value in least.items()}
            batches_ms = batch_ms(ours, given.device)
            figures["batch_of_500_new_ms"] = statistics.median(batches_ms)
            figures["batch_of_500_new_least_ms"] = min(batches_ms)
    print(json.dumps(figures, indent=2))
    print(write_result("service_load", {"requests": given.requests, "figures": figures}))


def cpu_us(server: Server, question: str, requests: int) -> float:
    """Processor time of the server for one question, in microseconds."""
    post = server.connect()
    for _ in range(200):
        post("/v1/choices", question)
    before = server.cpu_s()
    for _ in range(requests):
        post("/v1/choices", question)
    return (server.cpu_s() - before) / requests * 1e6


def at_once(server: Server, question: str, requests: int) -> dict[str, float]:
    """Requests per second, and percentiles of the latency, of connections that all ask at once."""
    times_ms: list[float] = []

    def ask() -> None:
        post = server.connect()
        for _ in range(requests // CONNECTIONS):
            started = time.perf_counter()
            post("/v1/choices", question)
            times_ms.append((time.perf_counter() - started) * 1e3)

    threads = [threading.Thread(target=ask) for _ in range(CONNECTIONS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent_s = time.perf_counter() - started
    cuts = statistics.quantiles(times_ms, n=100)
    return {"requests_per_s": len(times_ms) / spent_s, "p50_ms": cuts[49], "p99_ms": cuts[98]}


def batch_ms(server: Server, device: str) -> list[float]:
    """Times of batches of problems that were not asked before, in milliseconds.

    The first ones, while the paths of what implementations count are learned, do not count.
    """
    post, draw, times_ms = server.connect(), random.Random(), []
    for _ in range(LEARNING + BATCHES):
        layers = [
            {
                "operator": "lstm",
                "hyperparameters": {
                    "hidden": draw.randint(8, 512),
                    "batch": draw.randint(1, 64),
                    "seq": draw.randint(5, 200),
                },
            }
            for _ in range(BATCH)
        ]
        body = json.dumps({"problems": layers, "devices": [device]})
        started = time.perf_counter()
        post("/v1/choices:batch", body)
        times_ms.append((time.perf_counter() - started) * 1e3)
    return times_ms[LEARNING:]


if __name__ == "__main__":
    main()
