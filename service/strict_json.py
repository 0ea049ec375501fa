"""Addresses with the parameters of their path alone, and bodies that are JSON as RFC 8259 has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Sequence
from email.message import Message
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

from kernel_selector.kernels.contract.errors import shorten, suggest
from selector.errors import InvalidRequest

from .access import needed_scope, without_scope

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class StrictRoute(APIRoute):
    """A route that takes each of its query parameters once, and no other: 422 otherwise.

    And that is for requests to which the scope of its own path was granted: `Access` asks by the path as it
    came, which may be written in a way that it does not know.
    """

    def get_route_handler(self) -> Handler:
        """The handler, behind the check."""
        handle = super().get_route_handler()
        parts = (self.dependant, *self.dependant.dependencies)
        known = [parameter.alias for part in parts for parameter in part.query_params]

        async def checked(request: Request) -> Response:
            needed = needed_scope(request.method, self.path)
            if needed not in request.scope.get("scopes", ()):
                raise HTTPException(403, without_scope(needed))
            if request.scope["query_string"]:
                _require_parameters(request, known)
            return await handle(request)

        return checked


class StrictJsonRoute(StrictRoute):
    """... whose body must be announced as JSON and be strict JSON: 415 and 400 otherwise."""

    def get_route_handler(self) -> Handler:
        """The handler, behind the checks."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if self.body_field is not None:
                require_type(request, "application/json")
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict


class _StrictRequest(Request):
    async def json(self) -> Any:
        return parse(await self.body())


class _NotJson(ValueError):
    """Python's parser would take it, RFC 8259 does not."""


def parse(body: bytes) -> Any:
    """The value of a JSON text. Raises HTTPException 400, which says what is wrong.

    Refuses what Python's parser lets through: NaN and infinities, a key given twice, other encodings
    than UTF-8.
    """
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except RecursionError:
        reason = "it is nested too deeply"
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} is not UTF-8"
    except (json.JSONDecodeError, _NotJson) as error:
        reason = str(error)
    except ValueError:
        reason = "a number has too many digits"
    raise HTTPException(400, f"The body is not JSON: {reason}.")


def require_type(request: Request, expected: str) -> None:
    """Raise HTTPException 415 unless the body is announced as this media type, and as it is."""
    content_type = request.headers.get("content-type", "")
    header = Message()
    header["content-type"] = content_type
    if header.get_content_type() != expected:
        given = repr(content_type) if content_type else "missing"
        raise HTTPException(415, f"Content-Type is {given}: expected {expected!r}.")
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise HTTPException(415, f"Content-Encoding is {encoding!r}: expected a body that is not compressed.")


def _require_parameters(request: Request, known: Sequence[str]) -> None:
    """Raise InvalidRequest for a parameter that the path does not have, and for one given twice."""
    given = [name for name, _ in request.query_params.multi_items()]
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        hint = suggest(unknown, known) if known else "This path has none."
        raise InvalidRequest(f"Unknown parameter {shorten(unknown)} in the address. {hint}")
    twice = next((name for name in known if given.count(name) > 1), None)
    if twice is not None:
        values = ", ".join(map(shorten, request.query_params.getlist(twice)[:5]))
        raise InvalidRequest(f"{twice} is given {given.count(twice)} times ({values}): expected it once.")


def _no_constant(text: str) -> Any:
    raise _NotJson(f"{text} is not a JSON number")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise _NotJson(f"the key {next(name for name in names if names.count(name) > 1)!r} is given twice")
    return value
