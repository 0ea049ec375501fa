"""`selector serve`."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from ipaddress import ip_address
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .terminal import output
from .terminal.options import DatabaseOption, JsonOption, NoShippedOption

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from selector import Selector

    from ..settings import Settings

WORKER_SILENCE_S = 60  # after which a worker counts as hung; importing torch can take that of a busy machine
LOOK_S = 0.1  # how often to look whether the first worker is ready


def serve(
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 for all.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=1, max=65535, help="Port to listen on.")] = 8000,
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, max=256, help="Processes that answer; each has its own memory.")
    ] = 1,
    database: DatabaseOption = None,
    no_shipped: NoShippedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Serve choices over HTTP, until Ctrl-C.

    Examples:

    \b
      selector serve
      selector serve --host 0.0.0.0 --port 8080    (asks for tokens: see selector token)
      selector serve --workers 4
      curl -s localhost:8000/v1/choices -H 'content-type: application/json' -d '
        {"hyperparameters": {"hidden": 256, "batch": 32}}'
    """
    from selector import Selector

    from ..settings import Settings

    require_free(host, port)
    given: dict[str, Any] = {} if is_loopback(host) else {"tokens": "required"}
    settings = Settings.load(**given, **({"shipped": False} if no_shipped else {}))
    # what is wrong with the database is said here, once
    selector = Selector(database, shipped=settings.shipped)
    address = url("http", host, port)
    if workers == 1:
        _serve_here(selector, settings, (host, port), lambda: _announce(address, as_json))
        return
    selector.close()
    os.environ["SELECTOR_TOKENS"] = settings.tokens
    os.environ["SELECTOR_SHIPPED"] = "on" if settings.shipped else "off"
    if database is not None:
        os.environ["SELECTOR_DATABASE_URL"] = database
    _serve_with(workers, settings, (host, port), lambda: _announce(address, as_json))


def _serve_here(
    selector: Selector, settings: Settings, place: tuple[str, int], announce: Callable[[], None]
) -> None:
    """Answer in this process."""
    from ..app import collect_seldom, create_app

    collect_seldom()
    application = create_app(selector, settings=settings)
    configuration = _configuration(application, settings, place)
    _log_requests(settings)
    run_announced(configuration, announce)


def run_announced(configuration: uvicorn.Config, announce: Callable[[], None]) -> None:
    """Answer in this process until a signal ends it; announce it when it listens, not before."""
    import uvicorn

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            announce()

    Announcing(configuration).run()


def _serve_with(
    workers: int, settings: Settings, place: tuple[str, int], announce: Callable[[], None]
) -> None:
    """Answer in several processes; one that dies is replaced. They add up their metrics in a folder."""
    from uvicorn.supervisors import Multiprocess

    from ..metrics import SHARED

    configuration = _configuration("kernel_selector.service.cli.serve:worker", settings, place)
    configuration.workers = workers
    with TemporaryDirectory() as folder:
        os.environ.setdefault(SHARED, folder)
        with configuration.bind_socket() as listening:
            Thread(target=_when_answered, args=(listening, announce), daemon=True).start()
            Multiprocess(configuration, sockets=[listening]).run()


def worker() -> FastAPI:
    """The application of one process of several, by the environment that `serve` has left it."""
    from ..app import from_environment
    from ..settings import Settings

    _log_requests(Settings.load())
    return from_environment()


def _configuration(application: FastAPI | str, settings: Settings, place: tuple[str, int]) -> uvicorn.Config:
    import uvicorn

    from ..connections import BoundedProtocol

    return uvicorn.Config(
        application,
        http=BoundedProtocol,
        factory=isinstance(application, str),
        host=place[0],
        port=place[1],
        log_level="warning",
        timeout_graceful_shutdown=settings.shutdown_s,
        timeout_worker_healthcheck=WORKER_SILENCE_S,
    )


def _log_requests(settings: Settings) -> None:
    """uvicorn's own remarks stay at warnings: our lines say what they would."""
    from ..problem_details import LOGGER

    if settings.access_log:
        LOGGER.setLevel(logging.INFO)


def _when_answered(listening: socket.socket, announce: Callable[[], None]) -> None:
    """Announce once a worker takes connections: it listens when it is ready, not before."""
    host, port = listening.getsockname()[:2]
    own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    while True:
        try:
            socket.create_connection((own, port)).close()
        except OSError:
            time.sleep(LOOK_S)
        else:
            announce()
            return


def _announce(address: str, as_json: bool) -> None:
    """Said when questions are answered, not before: scripts wait for it."""
    if as_json:
        output.print_json({"serving": address, "documentation": f"{address}/docs"})
        sys.stdout.flush()
    else:
        output.out().print(
            f"Serving on [bold]{address}[/] (documentation: {address}/docs). Ctrl-C stops.", soft_wrap=True
        )


def url(scheme: str, host: str, port: int) -> str:
    """URL of the service for clients."""
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether nobody from another machine can connect to it."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # another name: whatever it stands for
        return False


def require_free(host: str, port: int) -> None:
    """uvicorn would log a taken port and exit; this says what to do about it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise typer.BadParameter(
            f"cannot listen on {host} port {port} ({error.strerror or error}): "
            "choose another with --port or --host."
        ) from None
