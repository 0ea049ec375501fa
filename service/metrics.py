"""Metrics of the service for Prometheus, at `/metrics`.

With several worker processes, `PROMETHEUS_MULTIPROC_DIR` names an empty folder where they add up their
counts; without it each process answers for itself.
"""

from __future__ import annotations

import os
from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.types import Scope

from selector import Choice, Selector, SelectorError

SHARED = "PROMETHEUS_MULTIPROC_DIR"
# seconds: answers from memory take a fraction of a millisecond, batches and uploads up to seconds
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The counts of one service."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "selector_requests", "Requests answered.", ["method", "path", "status"], registry=registry
        )
        self._seconds = Histogram(
            "selector_request_seconds", "Time to answer.", ["path"], registry=registry, buckets=BUCKETS
        )
        self._choices = Counter(
            "selector_choices",
            "Choices by what they rest on; default: nothing was known.",
            ["source"],
            registry=registry,
        )
        self._errors = Counter(
            "selector_choice_errors", "Questions that got no choice, by class.", ["kind"], registry=registry
        )
        self._records = Counter(
            "selector_records_received", "Measurements that were sent.", ["fate"], registry=registry
        )
        self._stored = _state("selector_records", "Measurements in the database.", registry)
        self._age = _state(
            "selector_model_age_seconds", "Since the latest cost model was stored.", registry, "operator"
        )
        self._readable = _state("selector_database_readable", "1 while it can be read.", registry)
        self._tasks = _state("selector_tasks", "Tasks of profiling jobs.", registry, "device", "state")
        self._expiries = _state(
            "selector_lease_expiries", "Leases of tasks that ran out: workers that were lost.", registry
        )

    def request(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request that was answered, under the path that it matched."""
        route = scope.get("route")
        path = getattr(route, "path", None) or "none"
        self._requests.labels(scope["method"] if route else "none", path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def choices(self, answers: Iterable[Choice | SelectorError]) -> None:
        """Count choices, or the errors in their place."""
        found = list(answers)
        errors = Tally(type(one).__name__ for one in found if isinstance(one, SelectorError))
        sources = Tally([one.source for one in found if not isinstance(one, SelectorError)])
        for counter, counts in ((self._errors, errors), (self._choices, sources)):
            for label, number in counts.items():
                counter.labels(label).inc(number)

    def received(self, **counts: int) -> None:
        """Count measurements that were sent by what became of them."""
        for fate, count in counts.items():
            self._records.labels(fate).inc(count)

    def queue(self, counts: Mapping[tuple[str, str], int], expiries: int) -> None:
        """Take the number of tasks by device and state, and of leases that ran out."""
        for labels, number in counts.items():
            self._tasks.labels(*labels).set(number)
        self._expiries.set(expiries)

    def text(self, selector: Selector) -> bytes:
        """All of it, with the state of the selector's database, in Prometheus' format."""
        state = selector.status()
        self._readable.set(0 if state["trouble"] else 1)
        self._stored.set(state["records"])
        for model in reversed(state["models"]):  # the latest of an operator comes last, and stays
            created = datetime.fromisoformat(model["created_at"])
            self._age.labels(model["operator"]).set((datetime.now(UTC) - created).total_seconds())
        if not os.environ.get(SHARED):
            return generate_latest(self._registry)
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone)  # type: ignore[no-untyped-call]
        return generate_latest(everyone)


def _state(name: str, help: str, registry: CollectorRegistry, *labels: str) -> Gauge:
    """Something that is set; of several processes the one that was asked last says it."""
    return Gauge(name, help, labels, registry=registry, multiprocess_mode="mostrecent")
