"""The page for people, with its style sheet and icon. Not part of the contract: it may change any time."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from ..pages.page import render

router = APIRouter(include_in_schema=False)
HEADERS = {
    # no script at all, nothing from elsewhere, nobody's frame
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
FRESH = {"cache-control": "private, no-store"}
KEPT = {"cache-control": "public, max-age=3600"}


@router.get("/")
def page(request: Request) -> HTMLResponse:
    """What is measured, what wins where, one choice explained, how good the cost models are: for people."""
    parameters = request.query_params.multi_items()
    status, html = render(request.app.state.page, parameters)
    return HTMLResponse(html, status_code=status, headers={**HEADERS, **FRESH})


def _style(_: Request) -> Response:
    return _file("style.css", "text/css")


def _icon(_: Request) -> Response:
    return _file("icon.svg", "image/svg+xml")


def _file(name: str, media_type: str) -> Response:
    text = (files("kernel_selector.service") / "pages" / name).read_text()
    return Response(text, media_type=media_type, headers={**HEADERS, **KEPT})


router.add_route("/page/style.css", _style)
router.add_route("/page/icon.svg", _icon)
