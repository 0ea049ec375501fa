"""The paths of the service.

Answers come from memory, at once, in the event loop. Now and then one is preceded by reading a database that
has changed, or by the first look at a device: that would hold up all other requests, so it happens in
the thread pool, which alone takes as long as a whole answer from memory.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from fastapi.concurrency import run_in_threadpool

from kernel_selector.kernels.contract import UnknownOperator
from kernel_selector.kernels.contract.errors import suggest
from selector import Selector

from . import examples
from .documentation import problem_response
from .problems import NOT_READY, ProblemResponse, problem
from .schemas import ChoiceDocument, ChooseRequest, Health, KnownDeviceDocument, OperatorDocument, Readiness
from .strict_json import StrictJsonRoute

router = APIRouter(route_class=StrictJsonRoute)
Responses = dict[int | str, dict[str, Any]]
INTERNAL: Responses = {500: problem_response("The service failed; its log says why.")}
UNAVAILABLE: Responses = {503: problem_response("The database, the model or the device cannot be used now.")}


@router.post(
    "/v1/choose",
    operation_id="choose",
    tags=["choose"],
    summary="Choose an implementation",
    response_description="The choice, what it rests on, and all candidates",
    response_model=ChoiceDocument,
    responses={
        400: problem_response("The body is not strict JSON.", examples.problems(400)),
        409: problem_response("A right question without an answer.", examples.problems(409)),
        413: problem_response("The body is longer than the service accepts."),
        415: problem_response("The body is not announced as JSON.", examples.problems(415)),
        422: problem_response("The question is wrong.", examples.problems(422)),
        **INTERNAL,
        **UNAVAILABLE,
    },
)
async def choose(
    request: Request, question: Annotated[ChooseRequest, Body(openapi_examples=examples.QUESTIONS)]
) -> dict[str, Any]:
    """The fastest implementation for these hyperparameters, or with `objective` "memory" the smallest."""
    selector = _selector(request)
    ask = partial(
        selector.choose,
        question.operator,
        device=question.device,
        memory=question.memory,
        objective=question.objective,
        override=question.override,
        **question.hyperparameters,
    )
    at_once = selector.answers_at_once(question.operator, question.device)
    choice = ask() if at_once else await run_in_threadpool(ask)
    return choice.to_dict()


@router.get(
    "/v1/operators",
    operation_id="listOperators",
    tags=["catalogue"],
    response_model=list[OperatorDocument],
    responses={**INTERNAL},
)
async def list_operators(request: Request) -> list[dict[str, Any]]:
    """Every operator, with its hyperparameters and implementations."""
    return _selector(request).operators()


@router.get(
    "/v1/operators/{name}",
    operation_id="getOperator",
    tags=["catalogue"],
    response_model=OperatorDocument,
    responses={404: problem_response("There is no such operator."), **INTERNAL},
)
async def get_operator(request: Request, name: str) -> dict[str, Any]:
    """One operator."""
    known = {operator["name"]: operator for operator in _selector(request).operators()}
    if name not in known:
        raise UnknownOperator(f"Unknown operator {name!r}. {suggest(name, known)}")
    return known[name]


@router.get(
    "/v1/devices",
    operation_id="listDevices",
    tags=["catalogue"],
    response_model=list[KnownDeviceDocument],
    responses={**INTERNAL, **UNAVAILABLE},
)
def list_devices(request: Request) -> list[dict[str, Any]]:
    """The devices that questions can name, and how much is known about each."""
    return _selector(request).devices()


@router.get("/healthz", operation_id="health", tags=["health"])
async def health() -> Health:
    """The process is alive; says nothing of the database."""
    return Health(status="ok")


@router.get(
    "/readyz",
    operation_id="readiness",
    tags=["health"],
    response_model=Readiness,
    responses={503: problem_response("Nothing to answer from; the detail says why.")},
)
def readiness(request: Request) -> dict[str, Any] | ProblemResponse:
    """The database can be read, and there are measurements or a model in it."""
    state = _selector(request).status()
    if state["trouble"]:
        return problem(NOT_READY, state["trouble"], scope=request.scope)
    if not (state["records"] or state["models"]):
        why = " ".join(state["caveats"]) or f"There is nothing in {state['database']} to answer from."
        return problem(NOT_READY, why, scope=request.scope)
    counts = {"records": state["records"], "models": len(state["models"])}
    return {"status": "ready", "snapshot": state["snapshot"], **counts}


def _selector(request: Request) -> Selector:
    selector: Selector = request.app.state.selector
    return selector
