"""What the routes share: the selector that answers, and the problems that every route may give."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from selector import Selector

from .. import examples
from ..documentation import problem_response

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
