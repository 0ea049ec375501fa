"""Kubernetes' scheduler extender: `filter` and `prioritize`, on a listener of its own.

The scheduler can send no token, so this is never part of the main service: it listens on the loopback
interface, or asks for a client certificate. Only 200 counts as an answer, and an error would stop a pod, so
whatever is not understood is neutral, and the log says why.

A pod says what it computes in the annotation `kernel-selector/problem`, as JSON with the fields of
`POST /v1/choices`; a node says what it has in the label `nvidia.com/gpu.product`. Wire format:
kubernetes/kube-scheduler, extender/v1/types.go. Its Go types have no JSON names: keys are capitalised, and
matched without regard to case.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .extras import require_service

require_service()

from fastapi.concurrency import run_in_threadpool
from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from selector import Query, Selector

from .middleware import BodyLimit
from .scheduling.kubernetes import NEUTRAL, Verdict, judge
from .scheduling.placement_formats import PRODUCT_LABEL
from .schemas.layers import Layer

LOGGER = logging.getLogger("uvicorn.error.kernel_selector")
ANNOTATION = "kernel-selector/problem"
MOST_BODY_BYTES = 64 * 2**20  # real nodes have tens of kilobytes each
PREFIX = "/k8s/v1"


@dataclass(frozen=True)
class Candidates:
    """The nodes of one request, in the form in which they came: whole ones, or names alone."""

    whole: dict[str, Any] | None  # a NodeList
    names: list[str] | None
    products: Mapping[str, str] = field(default_factory=dict)  # by name of the node

    @property
    def every(self) -> list[str]:
        """The names of all nodes, in their order."""
        if self.names is not None:
            return self.names
        return [_name(node) for node in _items(self.whole)]

    def answer(self, refused: Mapping[str, str]) -> dict[str, Any]:
        """The `ExtenderFilterResult` without the refused nodes, in the form that was asked in."""
        whole = self.whole
        if whole is not None:
            kept = [node for node in _items(whole) if _name(node) not in refused]
            key = next((key for key in whole if key.lower() == "items"), "items")
            whole = {**whole, key: kept}
        return {
            "Nodes": whole,
            "NodeNames": None if self.names is None else [one for one in self.names if one not in refused],
            "FailedNodes": {},
            # preempting other pods would not help: it is the hardware
            "FailedAndUnresolvableNodes": dict(refused),
            "Error": "",
        }


def create_extender(selector: Selector, *, nodes: Mapping[str, str] | None = None) -> Starlette:
    """The extender over a selector. `nodes` has the products of nodes by name, for schedulers that send
    names alone (`nodeCacheCapable: true`)."""
    known = dict(nodes or {})

    async def filter(request: Request) -> Response:
        return _json(await run_in_threadpool(filtered, selector, known, await request.body()))

    async def prioritize(request: Request) -> Response:
        return _json(await run_in_threadpool(prioritized, selector, known, await request.body()))

    async def alive(_: Request) -> Response:
        return _json({"status": "ok"})

    app = Starlette(
        routes=[
            Route(f"{PREFIX}/filter", filter, methods=["POST"]),
            Route(f"{PREFIX}/prioritize", prioritize, methods=["POST"]),
            Route("/healthz", alive),
        ]
    )
    app.add_middleware(BodyLimit, max_bytes=MOST_BODY_BYTES, larger={})
    return app


def _json(document: object) -> Response:
    # ASCII: what came in may hold half of a character, which no UTF-8 has
    return Response(json.dumps(document, allow_nan=False), media_type="application/json")


def filtered(selector: Selector, known: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """`ExtenderFilterResult`: the nodes on which the pod's problem is not known to be impossible."""
    try:
        pod, candidates = _arguments(body, known)
    except ValueError as error:
        LOGGER.warning("filter: %s", error)
        return Candidates(None, None).answer({}) | {"Error": f"Not understood: {error}"}
    verdicts = _verdicts(selector, pod, candidates)
    refused = {name: verdict.refusal for name, verdict in verdicts.items() if verdict.refusal is not None}
    return candidates.answer(refused)


def prioritized(selector: Selector, known: Mapping[str, str], body: bytes) -> list[dict[str, Any]]:
    """`HostPriorityList`: 0 to 10 for each node, 5 where nothing is known."""
    try:
        pod, candidates = _arguments(body, known)
    except ValueError as error:
        LOGGER.warning("prioritize: %s", error)
        return []
    verdicts = _verdicts(selector, pod, candidates)
    return [
        {"Host": name, "Score": verdicts[name].score if name in verdicts else NEUTRAL}
        for name in candidates.every
    ]


def _arguments(body: bytes, known: Mapping[str, str]) -> tuple[dict[str, Any], Candidates]:
    """Pod and nodes of `ExtenderArgs`. Raises ValueError for what is none."""
    try:
        given = _parsed(body)
        pod, whole, names = (_get(given, name) for name in ("pod", "nodes", "nodenames"))
        if names is not None:
            if not isinstance(names, list):
                raise ValueError("NodeNames is no list")
            listed = [str(name) for name in names]
            products = {name: known[name] for name in listed if name in known}
            return pod or {}, Candidates(None, listed, products)
        if not isinstance(whole, dict | None):
            raise ValueError("Nodes is no list of nodes")
        products = {_name(node): product for node in _items(whole) if (product := _product(node, known))}
        return pod or {}, Candidates(whole, None, products)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _parsed(body: bytes) -> Any:
    """The value of a JSON text. Of 100 whole nodes in 0.4 ms, where json.loads takes 2.7."""
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError:  # also for halves of characters, which Go's parser takes
        return json.loads(body, parse_constant=_no_constant)


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _verdicts(selector: Selector, pod: Mapping[str, Any], candidates: Candidates) -> dict[str, Verdict]:
    """By name of the node, as far as something is known; nothing for a pod without a usable problem."""
    try:
        query = _query(pod)
        if query is None:
            return {}
        found = judge(selector, query, set(candidates.products.values()))
    except Exception as error:  # whatever it is, an error of ours must stop no pod
        LOGGER.warning("extender: %s: %s", type(error).__name__, " ".join(str(error).split())[:500])
        return {}
    return {name: found[product] for name, product in candidates.products.items()}


def _query(pod: Mapping[str, Any]) -> Query | None:
    """The question in the pod's annotation. Raises ValueError for one that is none."""
    annotations = _get(_get(pod, "metadata") or {}, "annotations") or {}
    text = annotations.get(ANNOTATION)
    return None if text is None else Layer.model_validate_json(text).query(None)


def _product(node: Mapping[str, Any], known: Mapping[str, str]) -> str | None:
    labels = _get(_get(node, "metadata") or {}, "labels") or {}
    product = labels.get(PRODUCT_LABEL) or known.get(_name(node))
    return None if product is None else str(product)


def _items(nodes: Mapping[str, Any] | None) -> list[Any]:
    return (_get(nodes, "items") if nodes else None) or []


def _name(node: Mapping[str, Any]) -> str:
    return str(_get(_get(node, "metadata") or {}, "name"))


def _get(data: Mapping[str, Any], name: str) -> Any:
    """The value of a key, spelled in any case."""
    if name in data:
        return data[name]
    return next((value for key, value in data.items() if key.lower() == name), None)
