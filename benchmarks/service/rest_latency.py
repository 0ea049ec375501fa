"""Latency of a question over HTTP.

    python -m benchmarks.service.rest_latency [--requests N] [--database FILE]

Starts the service on a free loopback port, asks over one connection, first the same question again and
again, then a new one each time. Prints percentiles in milliseconds, and writes them, with what they were
measured on, to `benchmarks/results/rest_latency.json`. `health` is the cost of HTTP alone. Client and
server share the machine's cores.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

import httpx2 as httpx

from benchmarks.common.result import write_result
from benchmarks.common.serving import OURS, percentiles, serving


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000, help="of each kind")
    parser.add_argument("--database", help="file or URL; the user's own when left out")
    given = parser.parse_args()
    draw = random.Random(0)
    with (
        serving(OURS, given.database, threads=None) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client,
    ):
        kinds: dict[str, Callable[[], httpx.Response]] = {
            "health": lambda: client.get("/healthz"),
            "same_question": lambda: ask(client, hidden=256, batch=32),
            "new_question": lambda: ask(client, hidden=draw.randint(8, 512), batch=draw.randint(1, 64)),
        }
        figures = {name: measure(send, given.requests) for name, send in kinds.items()}
    for name, times in figures.items():
        print(name, times)
    print(write_result("rest_latency", {"requests": given.requests, "figures": figures}))


def ask(client: httpx.Client, **hyperparameters: int) -> httpx.Response:
    """One question about an LSTM layer."""
    return client.post("/v1/choices", json={"hyperparameters": hyperparameters})


def measure(send: Callable[[], httpx.Response], requests: int) -> dict[str, float]:
    """Percentiles over `requests` answers, after a tenth as many to warm up; raises when one fails."""
    times_ms = []
    for index in range(requests + requests // 10):
        started = time.perf_counter()
        send().raise_for_status()
        if index >= requests // 10:
            times_ms.append((time.perf_counter() - started) * 1e3)
    return percentiles(times_ms, 3)


if __name__ == "__main__":
    main()
