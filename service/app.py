"""The FastAPI application: `create_app(selector)`.

python -m uvicorn --factory kernel_selector.service.app:from_environment
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from threading import Thread

from .extras import require_service

require_service()

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool

from kernel_selector.kernels.contract import SelectorError
from selector import Selector
from selector.selection.database import named_database

from . import problem_details
from .access import Access
from .cached import Cached
from .fleet.jobs import queue_depth
from .ingest.intake import Intake
from .logs import LOGGER, write_json_lines
from .metrics import Metrics
from .middleware import BodyLimit, Head, RequestLog
from .openapi.document import document
from .pages.page import Sources
from .routes import ROUTERS
from .routes.turns import Turns
from .scheduling.warming import warming
from .settings import Settings, misspelt
from .tokens import AccessList

COLLECT_AFTER = 200_000, 20, 20  # objects (those of a dozen batches), young collections, middle-aged ones
SWITCH_S = 0.001
CLOSE_S = 5.0  # that the end of the service waits for the database
MMAP_THRESHOLD, LARGE_BYTES = -3, 2**20  # glibc's number of the setting; blocks that are given back at once
API_VERSION = "1.0.0"  # of the interface: the second number rises with additions
DESCRIPTION = """Asks the cost model and the measurements of `kernel-selector` which implementation of a
neural-network layer is the fastest, or needs the least memory, for given hyperparameters on a device.
Errors are RFC 9457 problem documents. Every answer carries `X-Request-ID`."""
TAGS = [
    {"name": "choices", "description": "Choose implementations."},
    {"name": "planning", "description": "For cluster schedulers."},
    {"name": "measurements", "description": "What was measured, and where."},
    {"name": "profiling", "description": "Jobs for workers that measure."},
    {"name": "catalogue", "description": "What can be asked about."},
    {"name": "health", "description": "For load balancers and orchestrators."},
]


def create_app(
    selector: Selector, *, settings: Settings | None = None, warm: bool = False, closes: bool = False
) -> FastAPI:
    """The service that answers from `selector`.

    Without `settings`, those of the environment. `warm`: whether each operator is warmed up beside the first
    requests, which takes memory and some seconds of a core. `closes`: whether the end of the service closes
    the selector, which goes on being its owner's otherwise.
    """
    given = settings or Settings.load()
    app = assemble(given)
    app.state.json_log = given.log_format == "json"
    if app.state.json_log:
        write_json_lines()
    app.state.selector, app.state.warm, app.state.closes = selector, warm, closes
    app.state.access = AccessList(selector)
    app.state.page = Sources.of(selector)
    app.state.intake = Intake(selector)
    app.state.metrics = Metrics()
    app.state.turns = Turns()
    app.state.prices = given.prices
    app.state.queue = Cached(
        lambda: queue_depth(selector.database), steady=True, patience_s=lambda: selector.patience_s
    )
    return app


def from_environment() -> FastAPI:
    """The service over the user's database, or that of `SELECTOR_DATABASE_URL`: a factory for uvicorn.

    Raises SystemExit with the reason where the latter cannot be opened, or is not there.
    """
    collect_seldom()
    try:
        settings = Settings.load()
        selector = Selector(named_database(), shipped=settings.shipped, background=True)
        return create_app(selector, settings=settings, warm=True, closes=True)
    except SelectorError as error:
        raise SystemExit(f"error: {error}") from error


def collect_seldom() -> None:
    """Let this process look for cycles of dead objects seldom: a full look goes through all records that are
    loaded, and takes as long as a batch of choices. Let threads that compute give way soon to the one that
    answers from memory, which waits for that several times a request. Give large blocks of memory back."""
    gc.set_threshold(*COLLECT_AFTER)
    sys.setswitchinterval(SWITCH_S)
    with suppress(AttributeError, OSError):  # of another system's library
        # else the first large body that is freed makes the next ones part of a heap that never shrinks
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, LARGE_BYTES)


def assemble(settings: Settings) -> FastAPI:
    """Routes, error handlers and middleware, without the selector that answers."""
    app = FastAPI(
        title="kernel-selector",
        version=API_VERSION,
        summary="The best kernel for your hyperparameters",
        description=DESCRIPTION,
        openapi_tags=TAGS,
        openapi_url=None,  # ours is written once
        docs_url=None,  # ours needs no other host
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_ready,
    )
    for router in ROUTERS:
        app.include_router(router)
    problem_details.install(app)
    app.add_middleware(
        BodyLimit,
        max_bytes=settings.max_body_bytes,
        larger=settings.larger_bodies,
        lines={"/v1/measurements"},
    )
    app.add_middleware(Access, required=settings.tokens == "required", requests_per_s=settings.requests_per_s)
    app.add_middleware(Head)
    app.add_middleware(RequestLog, enabled=settings.access_log)  # added last, so it is the outermost
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _ready(app: FastAPI) -> AsyncIterator[None]:
    """Probe the device and load records and model before the first request, not in it.

    What cannot be loaded is no reason to stop: `/readyz` says why, and the next request tries again.
    """
    if app.state.json_log:
        write_json_lines()
    for remark in misspelt():
        LOGGER.warning(remark)
    await run_in_threadpool(_load, app.state.selector)  # signals are heeded meanwhile
    async with warming(app.state.selector) if app.state.warm else nullcontext():
        yield
    # uvicorn ends the process by the signal that it got: nothing else closes them, and what was acknowledged
    # would stay in the database's log alone; who looks at a silent server holds the selector's lock
    closing = Thread(target=_close, args=(app,), daemon=True)
    closing.start()
    closing.join(CLOSE_S)


def _load(selector: Selector) -> None:
    """First answer of a selector, for which it probes and reads; the log says what hinders that."""
    try:
        selector.operators()
        selector.choose("lstm", hidden=64, batch=8)
    except SelectorError as error:
        LOGGER.warning("not ready: %s", error)


def _close(app: FastAPI) -> None:
    """Give back the connections to the database."""
    app.state.intake.close()
    if app.state.closes:
        app.state.selector.close()
