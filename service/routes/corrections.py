"""Corrections of what counts, and the journal: for tokens with the scope `admin`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response

from kernel_selector.db.audit import SERVICE, Action
from kernel_selector.db.submissions import Chosen
from kernel_selector.kernels.contract import SelectorError

from ..ingest import corrections
from ..ingest.corrections import Mandate
from ..openapi import correction_examples as examples
from ..openapi.document import problem_response
from ..pagination import journal
from ..schemas.corrections import (
    CorrectionDocument,
    Instant,
    JournalPage,
    ReleaseDocument,
    ReleaseRequest,
    RetractionRequest,
    UndoRequest,
)
from ..strict_json import StrictJsonRoute
from .common import BODY, CONDITIONAL, INTERNAL, UNAVAILABLE, Responses, conditional, intake_of, selector_of
from .measurements import Cursor, Limit, Word

router = APIRouter(route_class=StrictJsonRoute, tags=["measurements"])
COMMON: Responses = {422: problem_response("There is nothing of that."), **INTERNAL, **UNAVAILABLE}


@router.post(
    "/v1/measurements:retract",
    operation_id="retractMeasurements",
    response_model=CorrectionDocument,
    responses={**BODY, **COMMON},
)
def retract_measurements(
    request: Request, wanted: Annotated[RetractionRequest, Body(openapi_examples=examples.RETRACTIONS)]
) -> dict[str, Any]:
    """Measurements of an author, of a batch or since a time count no more; none is deleted. Choices follow
    within about a second. Needs a token with the scope `admin`."""
    chosen, mandate = _chosen(wanted), _mandate(request, wanted.reason)
    return _followed(request, corrections.retract(intake_of(request).database, chosen, mandate))


@router.post(
    "/v1/measurements:release",
    operation_id="releaseMeasurements",
    response_model=ReleaseDocument,
    responses={**BODY, **COMMON},
)
def release_measurements(
    request: Request, wanted: Annotated[ReleaseRequest, Body(openapi_examples=examples.RELEASES)]
) -> dict[str, Any]:
    """Records that were set aside count, under the names of those who sent them; those of a token that is not
    trusted may be `waiting` then. Needs the scope `admin`."""
    chosen, mandate = _chosen(wanted, ids=tuple(wanted.ids)), _mandate(request, wanted.reason)
    return _followed(request, corrections.release(intake_of(request).database, chosen, mandate))


@router.post(
    "/v1/measurements:undo",
    operation_id="undoCorrection",
    response_model=CorrectionDocument,
    responses={**BODY, **COMMON},
)
def undo_correction(
    request: Request, wanted: Annotated[UndoRequest, Body(openapi_examples=examples.UNDOINGS)]
) -> dict[str, Any]:
    """Take back one retraction or release, and leave others as they are. Needs the scope `admin`."""
    mandate = _mandate(request, wanted.reason)
    return _followed(request, corrections.undo(intake_of(request).database, wanted.entry, mandate))


@router.get(
    "/v1/audit",
    operation_id="listAudit",
    response_model=JournalPage,
    responses={422: problem_response("A parameter is wrong."), **CONDITIONAL, **INTERNAL, **UNAVAILABLE},
)
def list_audit(
    request: Request,
    author: Word = None,
    action: Action | None = None,
    since: Annotated[Instant | None, Query(description="What happened then or later.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Who did what, the oldest first: tokens, jobs, uploads, imports, merges and corrections. Needs the scope
    `admin`."""
    given: dict[str, str | datetime | None] = {"author": author, "action": action, "since": since}
    return conditional(request, asdict(journal(selector_of(request), given, cursor=cursor, limit=limit)))


def _followed(request: Request, found: dict[str, Any]) -> dict[str, Any]:
    """The answer to a correction, once the choices of this process rest on it."""
    with suppress(SelectorError):  # it is done, whatever hinders reading it: that is looked for again
        selector_of(request).reload()
    return found


def _chosen(wanted: RetractionRequest, ids: tuple[int, ...] = ()) -> Chosen:
    return Chosen(author=wanted.author, batch=wanted.batch, since=wanted.since, ids=ids)


def _mandate(request: Request, reason: str) -> Mandate:
    return Mandate(author=request.scope["author"], through=SERVICE, reason=reason)
