"""Errors as RFC 9457 problem documents (`application/problem+json`).

`KINDS` is the one table from our errors to an HTTP status. It is keyed by class name, so that no class has to
be imported for it; a class that is not listed takes the entry of its nearest base. `REASONS` says why the
database cannot be used in words that anybody may read: its place is not among them.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Scope

from kernel_selector.kernels.contract import SelectorError
from kernel_selector.kernels.contract.errors import suggest

from .logs import LOGGER

MEDIA_TYPE = "application/problem+json"
URN = "urn:kernel-selector:problem:"
LONGEST_DETAIL = 1000  # characters; the message may quote a client's value
HYPERPARAMETERS = "hyperparameters"


@dataclass(frozen=True)
class Kind:
    """A class of errors: the last part of its `type`, its status and its title."""

    slug: str
    status: int
    title: str

    @property
    def type(self) -> str:
        """The stable identifier of this class of errors."""
        return URN + self.slug


UNAVAILABLE = "database-unavailable"
INVALID_REQUEST = Kind("invalid-request", 422, "Invalid request")

KINDS: Mapping[str, Kind] = {
    # the question is wrong
    "UnknownOperator": Kind("unknown-operator", 422, "Unknown operator"),
    "UnknownImplementation": Kind("unknown-implementation", 422, "Unknown implementation"),
    "UnknownDevice": Kind("unknown-device", 422, "Unknown device"),
    "UnknownHyperparameter": Kind("unknown-hyperparameter", 422, "Unknown hyperparameter"),
    "InvalidHyperparameter": Kind("invalid-hyperparameter", 422, "Invalid hyperparameter"),
    "AmbiguousHyperparameter": Kind("ambiguous-hyperparameter", 422, "Ambiguous hyperparameter"),
    "InvalidRequest": INVALID_REQUEST,
    "UnknownPolicy": Kind("unknown-policy", 422, "Unknown policy"),
    "UnknownJob": Kind("unknown-job", 404, "Unknown profiling job"),
    "IdempotencyKeyReused": Kind("idempotency-key-reused", 422, "The key was used for another job"),
    "NotRecords": Kind("not-records", 422, "Not measurement records"),
    # the question is right, and there is no answer to it
    "UnsupportedProblem": Kind("unsupported-problem", 409, "The implementation refuses this problem"),
    "NothingFits": Kind("nothing-fits", 409, "Nothing fits into the memory limit"),
    "TaskLost": Kind("task-lost", 409, "The task is not this worker's any more"),
    # the service cannot answer now
    "NoMeasurements": Kind("no-measurements", 503, "There are no measurements"),
    "ModelVersionMismatch": Kind("model-unusable", 503, "The cost model cannot be used"),
    "MeasurementFailed": Kind("device-unavailable", 503, "The device cannot be measured"),
    "CorruptRecord": Kind(UNAVAILABLE, 503, "The measurement database cannot be used"),
    "DatabaseError": Kind(UNAVAILABLE, 503, "The measurement database cannot be used"),
    "SelectorError": Kind("unavailable", 503, "The selector cannot answer"),
}

NOT_READY = Kind("not-ready", 503, "Not ready")
ENDING = Kind("ending", 503, "The service is ending")
INTERNAL = Kind("internal-error", 500, "Internal error")
BODY_TOO_LARGE = Kind("body-too-large", 413, "Body too large")
BODY_TOO_SLOW = Kind("body-too-slow", 408, "Body too slow")
BY_STATUS: Mapping[int, Kind] = {
    400: Kind("malformed-json", 400, "Malformed JSON"),
    401: Kind("unauthorized", 401, "A valid token is needed"),
    403: Kind("forbidden", 403, "The token does not allow this"),
    404: Kind("not-found", 404, "Not found"),
    405: Kind("method-not-allowed", 405, "Method not allowed"),
    408: BODY_TOO_SLOW,
    413: BODY_TOO_LARGE,
    415: Kind("unsupported-media-type", 415, "Unsupported media type"),
    429: Kind("too-many-requests", 429, "Too many requests"),
}

# errors of a database that comes back
PASSING = frozenset({"DatabaseUnreachable", "DatabaseLocked", "DatabaseFull"})
REFUSED = "the latest is refused: it is damaged, or of another version"
CANNOT = "The database cannot be used; the service's log says more."
FILL = "`selector quickstart` takes some."
REASONS: Mapping[str, str] = {  # by class of the error
    "DatabaseMissing": f"There is no database, or no measurements in it. {FILL}",
    "DatabaseCorrupt": "The database is damaged, or is none; the service's log names it.",
    "DatabaseRevision": "It has another version's tables. `selector database upgrade` mends older ones; for "
    "newer ones the service has to be upgraded.",
    "DatabaseFull": "The disk of the database has no room left, and nothing was stored.",
    "DatabaseLocked": "Another process keeps the database locked.",
    "DatabaseReadOnly": "The database is open for reading only.",
    "DatabaseUnreachable": "The database cannot be reached. Check that it runs; the service's log names it.",
}


class ProblemResponse(JSONResponse):
    """A response that carries a problem document."""

    media_type = MEDIA_TYPE


def kind_of(error: Exception) -> Kind:
    """The table's entry for an error of ours: its own or that of its nearest base."""
    return next(KINDS[base.__name__] for base in type(error).__mro__ if base.__name__ in KINDS)


def reason(kind: str) -> str:
    """Public description of a database error, by its class."""
    return REASONS.get(kind, CANNOT)


def missing(state: Mapping[str, Any]) -> tuple[str, str] | None:
    """Missing evidence of a selector's state, as public text and with the database's location; None when
    nothing is missing, or nothing that does not come back by itself while answers rest on what was loaded.
    """
    has_evidence = state["records"] or state["models"] or state["shipped_records"]
    if state["trouble"] and not (has_evidence and state["trouble_kind"] in PASSING):
        return reason(state["trouble_kind"]), state["trouble"]
    if has_evidence:
        return None
    whole = " ".join(state["caveats"]) or f"There is nothing in {state['database']} to answer from."
    return f"There are no measurements and no cost model to answer from. {FILL}", whole


def components(state: Mapping[str, Any]) -> dict[str, str]:
    """Public state of what a selector answers from, by component: "ok", or what is wrong with it."""
    ships = "ok" if state["shipped_records"] else "damaged; the log says more" if state["unusable"] else "off"
    trouble = state["trouble_kind"]
    return {
        "database": reason(trouble) if trouble else "ok",
        "shipped measurements": ships,
        **{f"cost model of {model['operator']}": "ok" for model in state["models"]},
        **{f"cost model of {operator}": REFUSED for operator in state["refused"]},
    }


def problem(
    kind: Kind,
    detail: str,
    *,
    scope: Scope,
    status: int | None = None,
    errors: Sequence[Mapping[str, Any]] = (),
    headers: Mapping[str, str] | None = None,
) -> ProblemResponse:
    """The response for one error. `instance` is the path of the request that met it."""
    code = status or kind.status
    document = _document(kind, detail, scope, code)
    if errors:
        document["errors"] = list(errors)
    return ProblemResponse(document, status_code=code, headers=dict(headers or {}))


def document_of(error: SelectorError, scope: Scope) -> dict[str, Any]:
    """The problem document of one error among many answers."""
    kind = kind_of(error)
    return _document(kind, told(error, scope), scope, kind.status)


def told(error: Exception, scope: Scope) -> str:
    """Text of an error for who asks: where the database lies is for the scope `admin`, and for the log."""
    if kind_of(error).slug == UNAVAILABLE and "admin" not in scope.get("scopes", ()):
        return reason(type(error).__name__)
    return str(error)


def _document(kind: Kind, detail: str, scope: Scope, status: int) -> dict[str, Any]:
    if len(detail) > LONGEST_DETAIL:
        # the value is named first and the way out last: shorten what is between
        detail = f"{detail[: LONGEST_DETAIL // 2]} ... {detail[-LONGEST_DETAIL // 2 :]}"
    return {
        "type": kind.type,
        "title": kind.title,
        "status": status,
        "detail": detail,
        "instance": quote(scope["path"], safe="/:", errors="replace"),
    }


def install(app: FastAPI) -> None:
    """Answer every error of the app with a problem document."""
    app.add_exception_handler(SelectorError, _on_selector_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_internal_error)


async def _on_selector_error(request: Request, error: Exception) -> ProblemResponse:
    kind = kind_of(error)
    # a name in the path that does not exist is a resource that does not exist
    absent = bool(request.path_params) and isinstance(error, LookupError)
    if kind.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        LOGGER.warning("%s: %s", type(error).__name__, error)
    faults = [asdict(fault) for fault in getattr(error, "faults", ())]
    detail = told(error, request.scope)
    return problem(kind, detail, scope=request.scope, status=404 if absent else None, errors=faults)


async def _on_invalid_request(request: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, RequestValidationError)
    body = getattr(request.scope.get("route"), "body_field", None)
    fields = body.field_info.annotation.model_fields if body else ()
    errors = [_describe(item, fields) for item in error.errors()]
    detail = " ".join(item["detail"] for item in errors)
    return problem(INVALID_REQUEST, detail, scope=request.scope, errors=errors)


async def _on_http_error(request: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, HTTPException)
    code = error.status_code
    kind = BY_STATUS.get(code) or Kind(f"http-{code}", code, HTTPStatus(code).phrase)
    detail = error.detail
    if detail == HTTPStatus(code).phrase:  # raised by the router, which says no more
        detail = f"{detail}: {request.method} {request.url.path}. /openapi.json lists what there is."
    headers = dict(error.headers or {})
    if "allow" in {name.lower() for name in headers}:
        # the router names the methods of the first route of the path alone
        path = getattr(request.scope.get("route"), "path_format", request.url.path)
        operations = request.app.openapi()["paths"].get(path, {})
        allowed = set(map(str.upper, operations)) or set(headers.get("Allow", "").split(", "))
        headers = {"allow": ", ".join(sorted(allowed | ({"HEAD"} if "GET" in allowed else set())))}
    return problem(kind, detail, scope=request.scope, headers=headers)


async def _on_internal_error(request: Request, error: Exception) -> ProblemResponse:
    """Says nothing of the cause: that is in the log, under the request's id."""
    request_id = request.scope.get("request_id", "")
    LOGGER.error("request %s failed: %s", request_id, type(error).__name__)
    detail = f"The service failed. Its log says why, under the request id {request_id}."
    headers = {"x-request-id": request_id}
    return problem(INTERNAL, detail, scope=request.scope, headers=headers)


def _describe(item: Mapping[str, Any], fields: Collection[str]) -> dict[str, str]:
    """One validation error: where (JSON pointer into the body, or parameter) and what, naming the value.

    `fields` are those that the body has.
    """
    steps = [str(step) for step in item["loc"][1:] if step != "[key]"]
    pointer = "#" + "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)
    name = ".".join(steps) or "the body"
    message = item["msg"].removeprefix("Value error, ").rstrip(".")
    if item["type"] == "extra_forbidden":
        outermost = len(steps) == 1
        known = f" {suggest(name, fields)}" if outermost else ""
        hint = f" Hyperparameters belong inside {HYPERPARAMETERS!r}."
        detail = (
            f"Unknown field {name!r}.{known}{'' if outermost and HYPERPARAMETERS not in fields else hint}"
        )
    elif item["type"] == "missing":
        detail = f"{name} is missing."
    elif item["loc"][-1] == "[key]":
        detail = f"{name}: {message[:1].lower()}{message[1:]}."
    else:
        detail = f"{name}={reprlib.repr(item['input'])}: {message[:1].lower()}{message[1:]}."
    if item["loc"][0] != "body":
        return {"parameter": name, "detail": detail}
    return {"pointer": quote(pointer, safe="#/~", errors="replace"), "detail": detail}
