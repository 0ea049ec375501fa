"""Profiling jobs: made, looked at and cancelled by people; claimed and finished by workers."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Path, Query, Request, Response

from kernel_selector.kernels import registry

from ..fleet import jobs
from ..fleet.queue import renew
from ..jobs import claimed, finish, list_jobs, list_tasks
from ..openapi import job_examples as examples
from ..openapi.document import problem_response
from ..pagination import MOST_ITEMS, Page
from ..schemas.jobs import (
    LARGEST_ID,
    ClaimRequest,
    FinishDocument,
    FinishRequest,
    HeartbeatRequest,
    OfferDocument,
    ProfilingJobDocument,
    ProfilingJobPage,
    ProfilingJobRequest,
    ProfilingTaskPage,
    Renewed,
)
from ..strict_json import StrictJsonRoute
from .common import BODY, CONDITIONAL, INTERNAL, UNAVAILABLE, Responses, conditional, intake_of

router = APIRouter(route_class=StrictJsonRoute, tags=["profiling"])

Number = Annotated[int, Path(ge=1, le=LARGEST_ID)]
Cursor = Annotated[str | None, Query(max_length=100, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MOST_ITEMS, description="Most items of the page.")]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=jobs.LONGEST_KEY,
        description="The same key of the same token is the same job, however often it is sent.",
    ),
]
WRONG: Responses = {422: problem_response("Something in it is wrong.")}
MISSING: Responses = {404: problem_response("There is no such job.")}
LOST: Responses = {409: problem_response("Another has the task, it has ended, or its job was cancelled.")}
OF_WORKERS = (
    "owner",
    "reason",
    "reasons",
)  # fields with hosts' names and workers' texts, which may have paths
COMMON: Responses = {**WRONG, **INTERNAL, **UNAVAILABLE}


@router.post(
    "/v1/profiling-jobs",
    operation_id="createProfilingJob",
    status_code=202,
    response_model=ProfilingJobDocument,
    responses={**BODY, **COMMON},
)
def create_profiling_job(
    request: Request,
    response: Response,
    job: Annotated[ProfilingJobRequest, Body(openapi_examples=examples.JOBS)],
    key: Key = None,
) -> dict[str, Any]:
    """Queue every problem on every device, for workers to measure; `Location` is where to look how far it is.
    Needs a token with the scope `admin`."""
    operator = registry.operator(job.operator)
    wanted = jobs.JobRequest(
        operator=job.operator,
        problems=[operator.problem(one.hyperparameters) for one in job.problems],
        devices=job.devices,
        policy=job.policy,
        implementations=job.implementations,
        again=job.again,
        max_attempts=job.max_attempts,
        idempotency_key=key,
    )
    author = request.scope["author"]
    found, _ = jobs.create_job(intake_of(request).database, wanted, author=author, through="service")
    response.headers["location"] = f"{request.scope['root_path']}/v1/profiling-jobs/{found['id']}"
    return found


@router.get(
    "/v1/profiling-jobs",
    operation_id="listProfilingJobs",
    response_model=ProfilingJobPage,
    responses={**CONDITIONAL, **COMMON},
)
def list_profiling_jobs(request: Request, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """All jobs, the oldest first. What workers wrote is for tokens with the scopes `read` and `admin`."""
    found = list_jobs(intake_of(request).database, cursor=cursor, limit=limit)
    return conditional(request, _told(request, found))


@router.get(
    "/v1/profiling-jobs/{number}",
    operation_id="getProfilingJob",
    response_model=ProfilingJobDocument,
    responses={**MISSING, **CONDITIONAL, **COMMON},
)
def get_profiling_job(request: Request, number: Number) -> Response:
    """A job and how far it is. What workers wrote is for tokens with the scopes `read` and `admin`."""
    found = jobs.get_job(intake_of(request).database, number)
    return conditional(request, _without(found, _hidden(request)))


@router.get(
    "/v1/profiling-jobs/{number}/tasks",
    operation_id="listProfilingTasks",
    response_model=ProfilingTaskPage,
    responses={**MISSING, **CONDITIONAL, **COMMON},
)
def list_profiling_tasks(
    request: Request, number: Number, cursor: Cursor = None, limit: Limit = 100
) -> Response:
    """The tasks of a job: who had them, how often, and why some failed. Workers have the names of hosts, and
    write of their paths: both are for tokens with the scopes `read` and `admin`."""
    found = list_tasks(intake_of(request).database, number, cursor=cursor, limit=limit)
    return conditional(request, _told(request, found))


@router.delete(
    "/v1/profiling-jobs/{number}",
    operation_id="cancelProfilingJob",
    response_model=ProfilingJobDocument,
    responses={**MISSING, **COMMON},
)
def cancel_profiling_job(request: Request, number: Number) -> dict[str, Any]:
    """End what has not ended; what was measured stays. Again, it changes nothing. Needs the scope `admin`."""
    author = request.scope["author"]
    return jobs.cancel_job(intake_of(request).database, number, author=author, through="service")


@router.post(
    "/v1/profiling-tasks:claim",
    operation_id="claimProfilingTask",
    response_model=OfferDocument,
    responses={**BODY, **COMMON},
)
def claim_profiling_task(
    request: Request, claim: Annotated[ClaimRequest, Body(openapi_examples=examples.CLAIMS)]
) -> dict[str, Any]:
    """A task for a worker, which keeps it while its heartbeats come. Needs the scope `measure`."""
    offer = claimed(intake_of(request), claim.model_dump(), request.scope["author"])
    task = None if offer.assignment is None else offer.assignment.to_dict()
    return {"assignment": task, "pending": offer.pending}


@router.post(
    "/v1/profiling-tasks:heartbeat",
    operation_id="renewProfilingTask",
    response_model=Renewed,
    responses={**BODY, **LOST, **COMMON},
)
def renew_profiling_task(
    request: Request, beat: Annotated[HeartbeatRequest, Body(openapi_examples=examples.HEARTBEATS)]
) -> dict[str, Any]:
    """Hold a task for its full lease from now. Needs the scope `measure`."""
    renew(intake_of(request).database, beat.task, beat.lease, request.scope["author"])
    return {"task": beat.task}


@router.post(
    "/v1/profiling-tasks:finish",
    operation_id="finishProfilingTask",
    response_model=FinishDocument,
    responses={**BODY, **LOST, **COMMON},
)
def finish_profiling_task(
    request: Request, end: Annotated[FinishRequest, Body(openapi_examples=examples.ENDINGS)]
) -> dict[str, Any]:
    """Store a task's records and end its claim, both or neither; the same again changes nothing. Records are
    of the task's problem and device, and reviewed as those of `POST /v1/measurements` are. Needs the scope
    `measure`, and the token that claimed the task."""
    lines = [json.dumps(record) for record in end.records]
    ended = {"task": end.task, "lease": end.lease, "outcome": end.outcome, "reason": end.reason}
    counts = finish(intake_of(request), ended, lines, request.scope["author"])
    request.app.state.metrics.received(**{name: counts[name] for name in counts if name != "received"})
    return counts


def _told(request: Request, page: Page) -> dict[str, Any]:
    """A page of jobs or tasks for who asks, JSON-ready."""
    hidden = _hidden(request)
    return vars(page) | {"items": [_without(item, hidden) for item in page.items]}


def _hidden(request: Request) -> Collection[str]:
    """Fields that whoever asks is not told."""
    return () if "admin" in request.scope["scopes"] else OF_WORKERS


def _without(found: dict[str, Any], hidden: Collection[str]) -> dict[str, Any]:
    return {name: None if name in hidden else value for name, value in found.items()}
