"""Kubernetes' scheduler extender: `filter`, `prioritize` and `preempt`, on a listener of its own.

The scheduler can send no token, so this is never part of the main service: it listens on the loopback
interface, or asks for a client certificate. Only 200 counts as an answer, and an error would stop a pod, so
whatever is not understood is neutral, and the log says why.

A pod says what it computes in the annotation `kernel-selector/problem`, as JSON with the fields of
`POST /v1/choices`; a node says what it has in the label `nvidia.com/gpu.product`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from .extras import require_service

require_service()

from fastapi.concurrency import run_in_threadpool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from selector import Query, Selector

from .logs import LOGGER
from .middleware import BodyLimit
from .problem_details import missing
from .recent import Recent
from .scheduling.extender_arguments import (
    Candidates,
    NotUnderstood,
    Pod,
    filter_arguments,
    preemption_arguments,
)
from .scheduling.kubernetes import NEUTRAL, Verdict, judge
from .scheduling.warming import warm_up
from .schemas.layers import Layer

MOST_BODY_BYTES = 64 * 2**20  # real nodes have tens of kilobytes each
MOST_NODES = 2**14  # of which products are remembered: Kubernetes itself is meant for 5,000
MOST_PODS = 2**12  # that were warned about, with products that are not known
PREFIX = "/k8s/v1"


class Extender:
    """Answers to the scheduler's questions, from a selector. Safe to share among threads.

    `nodes` has the products of nodes by name, for schedulers that send names alone (`nodeCacheCapable:
    true`). Products of whole nodes are remembered for `preempt`, where names come alone in any case.
    """

    def __init__(self, selector: Selector, nodes: Mapping[str, str]) -> None:
        self._selector = selector
        self._given = dict(nodes)
        self._labels = Recent[str, str | None](MOST_NODES)
        self._warned = Recent[tuple[str, str], bool](MOST_PODS)

    def filter(self, body: bytes) -> dict[str, Any]:
        """`ExtenderFilterResult`: the nodes on which the pod's problem is not known to be impossible."""
        try:
            pod, candidates = filter_arguments(body)
        except NotUnderstood as error:
            return _not_understood(error)
        return candidates.answer(_refused(self._verdicts(pod, self._products(candidates))))

    def prioritize(self, body: bytes) -> list[dict[str, Any]]:
        """`HostPriorityList`: 0 to 10 for each node, 5 where nothing is known."""
        try:
            pod, candidates = filter_arguments(body)
        except NotUnderstood as error:
            LOGGER.warning("prioritize: %s", error)
            return []
        verdicts = self._verdicts(pod, self._products(candidates))
        return [
            {"Host": name, "Score": verdicts[name].score if name in verdicts else NEUTRAL}
            for name in candidates.every
        ]

    def preempt(self, body: bytes) -> dict[str, Any]:
        """`ExtenderPreemptionResult`: the nodes that `filter` would not refuse. Raises NotUnderstood."""
        pod, preemption = preemption_arguments(body)
        return preemption.answer(_refused(self._verdicts(pod, self._known(preemption.victims))))

    def _products(self, candidates: Candidates) -> dict[str, str]:
        """Products by name of the node; those of whole nodes are those that count from now on."""
        for name, product in candidates.labels.items():
            self._labels.put(name, product)
        return self._known(candidates.every)

    def _known(self, names: Iterable[str]) -> dict[str, str]:
        found = {name: self._labels.get(name) or self._given.get(name) for name in names}
        return {name: product for name, product in found.items() if product is not None}

    def _verdicts(self, pod: Pod, products: Mapping[str, str]) -> dict[str, Verdict]:
        """By name of the node, as far as something is known; nothing for a pod without a usable problem."""
        try:
            query = _query(pod)
            if query is None:
                return {}
            found = judge(self._selector, query, set(products.values()))
        except Exception as error:  # whatever it is, an error of ours must stop no pod
            if self._warned.put(pod.identity, True):
                words = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
                LOGGER.warning(
                    "pod %s has no answer, and all nodes stay with %d points: %s", pod.name, NEUTRAL, words
                )
            return {}
        for name, product in products.items():
            if not found[product].is_known and self._warned.put(("product", product), True):
                LOGGER.warning(
                    "%s of node %s is no GPU that is known by name: nodes with it stay with %d points",
                    *(product, name, NEUTRAL),
                )
        return {name: found[product] for name, product in products.items()}


def create_extender(selector: Selector, *, nodes: Mapping[str, str] | None = None) -> Starlette:
    """The extender over a selector, which is warmed up before it listens; `nodes` as of `Extender`."""
    extender = Extender(selector, nodes or {})

    def answering(verb: Callable[[bytes], object]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            found = await run_in_threadpool(verb, await request.body())
            try:
                return _json(found)
            except ValueError as error:  # of a number in a node that is larger than any, such as 1e400
                return _json(_not_understood(error))

        return answer

    async def preempt(request: Request) -> Response:
        try:
            return _json(await run_in_threadpool(extender.preempt, await request.body()))
        except NotUnderstood as error:
            LOGGER.warning("preempt: %s", error)
            # no node at all would mean that evicting helps nowhere: an error leaves the scheduler's own list
            return _json({"Error": f"Not understood: {error}"}, status=400)

    async def alive(_: Request) -> Response:
        return _json({"status": "ok"})

    async def ready(_: Request) -> Response:
        lacking = missing(await run_in_threadpool(selector.status))
        if lacking is None:
            return _json({"status": "ready"})
        LOGGER.warning("not ready: %s", lacking[1])
        return _json({"status": "not ready", "reason": lacking[0]}, status=503)

    @asynccontextmanager
    async def warmed(_: Starlette) -> AsyncIterator[None]:
        await run_in_threadpool(warm_up, selector)
        yield

    app = Starlette(
        lifespan=warmed,
        routes=[
            Route(f"{PREFIX}/filter", answering(extender.filter), methods=["POST"]),
            Route(f"{PREFIX}/prioritize", answering(extender.prioritize), methods=["POST"]),
            Route(f"{PREFIX}/preempt", preempt, methods=["POST"]),
            Route("/healthz", alive),
            Route("/readyz", ready),
        ],
    )
    app.add_middleware(BodyLimit, max_bytes=MOST_BODY_BYTES, larger={})
    return app


def _not_understood(error: ValueError) -> dict[str, Any]:
    """`ExtenderFilterResult` for what the scheduler does not send."""
    LOGGER.warning("filter: %s", error)
    return Candidates(None, None, {}).answer({}) | {"Error": f"Not understood: {error}"}


def _json(document: object, *, status: int = 200) -> Response:
    # ASCII: what came in may hold half of a character, which no UTF-8 has
    text = json.dumps(document, allow_nan=False)
    return Response(text, media_type="application/json", status_code=status)


def _refused(verdicts: Mapping[str, Verdict]) -> dict[str, str]:
    return {name: verdict.refusal for name, verdict in verdicts.items() if verdict.refusal is not None}


def _query(pod: Pod) -> Query | None:
    """The question in the pod's annotation. Raises ValueError for one that is none."""
    text = pod.problem
    return None if text is None else Layer.model_validate_json(text).query(None)
