"""The pages for people: the measurements, and the API's documentation, with what they are made of.

Not part of the contract: they may change any time. Nothing of them comes from another host.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from ..pages.page import render

router = APIRouter(include_in_schema=False)
HEADERS = {
    # no script at all, nothing from elsewhere, nobody's frame
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
# Swagger UI is a script, has icons in its style sheet, and asks this service
WITH_SCRIPT = {
    **HEADERS,
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
}
FRESH = {"cache-control": "private, no-store"}
KEPT = {"cache-control": "public, max-age=3600"}
OURS = files("kernel_selector.service") / "pages"
SWAGGER_UI = files("fastapi_offline") / "static"


@router.get("/")
def page(request: Request) -> HTMLResponse:
    """What is measured, what wins where, one choice explained, how good the cost models are: for people."""
    parameters = request.query_params.multi_items()
    status, html = render(request.app.state.page, parameters, request.scope["scopes"])
    return HTMLResponse(html, status_code=status, headers={**HEADERS, **FRESH})


@router.get("/docs")
def documentation() -> Response:
    """The API's documentation: Swagger UI over `openapi.json`."""
    return _file(OURS / "documentation.html", "text/html", WITH_SCRIPT)


def _description(request: Request) -> Response:
    """The OpenAPI document, written once: it is long, and open to all."""
    state = request.app.state
    if not hasattr(state, "description"):
        state.description = JSONResponse(request.app.openapi()).body
    return Response(state.description, media_type="application/json")


def _asset(folder: Traversable, media_type: str, request: Request) -> Response:
    return _file(folder / request.url.path.rpartition("/")[2], media_type)


def _file(path: Traversable, media_type: str, headers: Mapping[str, str] = HEADERS) -> Response:
    return Response(path.read_bytes(), media_type=media_type, headers={**headers, **KEPT})


router.add_route("/openapi.json", _description)
router.add_route("/page/style.css", partial(_asset, OURS, "text/css"))
router.add_route("/page/icon.svg", partial(_asset, OURS, "image/svg+xml"))
router.add_route("/docs/documentation.js", partial(_asset, OURS, "text/javascript"))
router.add_route("/docs/swagger-ui-bundle.js", partial(_asset, SWAGGER_UI, "text/javascript"))
router.add_route("/docs/swagger-ui.css", partial(_asset, SWAGGER_UI, "text/css"))
