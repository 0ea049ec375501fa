"""For load balancers and orchestrators."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Request, Response

from kernel_selector.kernels.contract import SelectorError

from ..access import allows
from ..logs import LOGGER
from ..metrics import CONTENT_TYPE
from ..openapi.document import problem_response
from ..problem_details import NOT_READY, ProblemResponse, components, missing, problem
from ..schemas.catalogue import Health, Readiness
from .common import selector_of

router = APIRouter(tags=["health"])


@router.get("/healthz", operation_id="health")
async def health() -> Health:
    """The process is alive; says nothing of the database."""
    return Health(status="ok")


@router.get(
    "/readyz",
    operation_id="readiness",
    response_model=Readiness,
    responses={503: problem_response("Nothing to answer from; the detail says why.")},
)
def readiness(request: Request) -> dict[str, Any] | ProblemResponse:
    """The database can be read, and there are measurements or a model to answer from: in it, or with the
    package. While a database is away that comes back by itself, and there is something loaded to answer from,
    the status is `stale`. Where the database lies is for tokens with the scope `admin`, and for the log."""
    state = selector_of(request).status()
    lacking = missing(state)
    if lacking is not None:
        open_to_all, whole = lacking
        LOGGER.warning("not ready: %s", whole)
        told = whole if allows(request.scope, "admin") else open_to_all
        return problem(NOT_READY, told, scope=request.scope)
    return {
        "status": "stale" if state["trouble"] else "ready",
        "snapshot": state["snapshot"],
        "records": state["records"],
        "models": sum(not model["shipped"] for model in state["models"]),
        "shipped_records": state["shipped_records"],
        "components": components(state),
    }


class MetricsResponse(Response):
    """Lines that Prometheus reads."""

    media_type = "text/plain"


@router.get("/metrics", operation_id="metrics", response_class=MetricsResponse)
def metrics(request: Request) -> Response:
    """Requests, choices by source, measurements received, age of models, depth of the queue of tasks: as
    Prometheus reads them."""
    counted = request.app.state.metrics
    with suppress(SelectorError):  # selector_database_readable says so, and the last counts stay
        counted.queue(*request.app.state.queue.value())
    text = counted.text(selector_of(request))
    return Response(text, headers={"content-type": CONTENT_TYPE})
