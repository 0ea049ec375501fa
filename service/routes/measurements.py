"""Measurements: read by the page, and taken in from the machines that measure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from kernel_selector.db.submissions import Chosen
from kernel_selector.kernels.contract import Status
from kernel_selector.kernels.contract.record import Regime

from ..ingest.intake import Intake, Receipt
from ..openapi import examples
from ..openapi.document import problem_response
from ..pagination import LARGEST_ID, MOST_ITEMS, measurements, quarantined
from ..schemas.corrections import Instant
from ..schemas.fields import Name
from ..schemas.measurements import MeasurementPage, QuarantinePage, ReceiptDocument
from ..strict_json import StrictRoute, require_type
from .common import CONDITIONAL, INTERNAL, UNAVAILABLE, conditional, selector_of

router = APIRouter(route_class=StrictRoute, tags=["measurements"])
NDJSON = "application/x-ndjson"

Cursor = Annotated[str | None, Query(max_length=100, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MOST_ITEMS, description="Most items of the page.")]
Word = Annotated[Name | None, Query()]


def _equal(
    operator: Word = None,
    device: Annotated[Name | None, Query(description="Its key.")] = None,
    implementation: Word = None,
    status: Status | None = None,
    regime: Annotated[Regime | None, Query(description="What the times are of.")] = None,
) -> dict[str, str]:
    """What records must have, by name."""
    given = {"operator": operator, "device": device, "implementation": implementation, "status": status}
    return {name: str(value) for name, value in (given | {"regime": regime}).items() if value is not None}


@router.get(
    "/v1/measurements",
    operation_id="listMeasurements",
    response_model=MeasurementPage,
    responses={422: problem_response("A parameter is wrong."), **CONDITIONAL, **INTERNAL, **UNAVAILABLE},
)
def list_measurements(
    request: Request,
    equal: Annotated[dict[str, str], Depends(_equal)],
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Records in the order in which they were stored; they can be sent to another service as they are. Those
    that are `waiting` do not count before somebody agrees."""
    return conditional(request, asdict(measurements(selector_of(request), equal, cursor=cursor, limit=limit)))


@router.get(
    "/v1/quarantine",
    operation_id="listQuarantine",
    response_model=QuarantinePage,
    responses={422: problem_response("A parameter is wrong."), **CONDITIONAL, **INTERNAL, **UNAVAILABLE},
)
def list_quarantine(
    request: Request,
    author: Word = None,
    batch: Annotated[int | None, Query(ge=1, le=LARGEST_ID, description="What they came in with.")] = None,
    since: Annotated[Instant | None, Query(description="What was received then or later.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Records that contradict what is known: no choice sees them. Needs a token with the scope `admin`."""
    chosen = Chosen(author=author, batch=batch, since=since)
    return conditional(request, asdict(quarantined(selector_of(request), chosen, cursor=cursor, limit=limit)))


@router.post(
    "/v1/measurements",
    operation_id="addMeasurements",
    summary="Add measurements",
    response_model=ReceiptDocument,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {NDJSON: {"schema": {"type": "string"}, "examples": examples.RECORDS}},
        }
    },
    responses={
        400: problem_response("The body is not UTF-8."),
        413: problem_response("The body is longer than the service accepts."),
        415: problem_response("The body is not announced as lines of JSON."),
        422: problem_response("Some lines are no records; nothing was stored."),
        **INTERNAL,
        **UNAVAILABLE,
    },
)
async def add_measurements(request: Request) -> dict[str, Any]:
    """Records as `python -m kernels.measure` prints them, one a line. All lines are stored, or none; the same
    lines again change nothing. Who sent them is kept, by the name of the token, which needs the scope
    `measure`. Records that contradict what is known are set aside, each with the reason."""
    require_type(request, NDJSON)
    body = await request.body()
    receipt = await run_in_threadpool(_taken, request.app.state.intake, body, request.scope["author"])
    request.app.state.metrics.received(
        added=receipt.added, known=receipt.known, quarantined=len(receipt.quarantined)
    )
    return asdict(receipt)


def _taken(intake: Intake, body: bytes, author: str) -> Receipt:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise HTTPException(400, f"Byte {error.start} of the body is not UTF-8.") from None
    return intake.take(_lines(text), author)


def _lines(text: str) -> Iterator[str]:
    """Lines as they are asked for: a body may have millions, of which the first ones show that it is none."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]
