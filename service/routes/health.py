"""For load balancers and orchestrators."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from ..documentation import problem_response
from ..problems import NOT_READY, ProblemResponse, problem
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
    """The database can be read, and there are measurements or a model in it."""
    state = selector_of(request).status()
    if state["trouble"]:
        return problem(NOT_READY, state["trouble"], scope=request.scope)
    if not (state["records"] or state["models"]):
        why = " ".join(state["caveats"]) or f"There is nothing in {state['database']} to answer from."
        return problem(NOT_READY, why, scope=request.scope)
    counts = {"records": state["records"], "models": len(state["models"])}
    return {"status": "ready", "snapshot": state["snapshot"], **counts}
