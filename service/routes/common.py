"""Shared parts of the routes: the selector that answers, and the problem responses of every route."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fastapi import Request, Response

from selector import Selector

from ..ingest.intake import Intake
from ..openapi import examples
from ..openapi.document import problem_response

Responses = dict[int | str, dict[str, Any]]
INTERNAL: Responses = {500: problem_response("The service failed; its log says why.")}
UNAVAILABLE: Responses = {503: problem_response("The database, the model or the device cannot be used now.")}
BODY: Responses = {
    400: problem_response("The body is not strict JSON.", examples.problems(400)),
    413: problem_response("The body is longer than the service accepts."),
    415: problem_response("The body is not announced as JSON.", examples.problems(415)),
}


def selector_of(request: Request) -> Selector:
    """The selector that this service answers from."""
    selector: Selector = request.app.state.selector
    return selector


def intake_of(request: Request) -> Intake:
    """Intake of measurements, with a database connection of its own."""
    intake: Intake = request.app.state.intake
    return intake


CONDITIONAL: Responses = {304: {"description": "Unchanged since the answer with the ETag of If-None-Match."}}


def conditional(request: Request, document: Any) -> Response:
    """The document as JSON with an ETag, or 304 when the client has it already."""
    body = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"etag": etag, "cache-control": "private, no-cache"}
    listed = ",".join(request.headers.getlist("if-none-match")).split(",")
    known = (tag.strip().removeprefix("W/") for tag in listed)
    if any(tag in (etag, "*") for tag in known):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)
