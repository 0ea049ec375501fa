"""`selector serve`."""

from __future__ import annotations

import logging
import socket
import sys
from ipaddress import ip_address
from typing import Annotated

import typer

from . import output
from .options import DatabaseOption, JsonOption


def serve(
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 for all.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=1, max=65535, help="Port to listen on.")] = 8000,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve choices over HTTP, until Ctrl-C.

    Examples:

    \b
      selector serve
      selector serve --host 0.0.0.0 --port 8080    (asks for tokens: see selector token)
      curl -s localhost:8000/v1/choices -H 'content-type: application/json' -d '
        {"hyperparameters": {"hidden": 256, "batch": 32}}'
    """
    import uvicorn

    from selector import Selector

    from ..app import create_app
    from ..problems import LOGGER
    from ..settings import Settings

    require_free(host, port)
    settings = Settings.load() if is_loopback(host) else Settings.load(tokens="required")
    application = create_app(Selector(database), settings=settings)
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            _announce(address, as_json)

    configuration = uvicorn.Config(
        application,
        host=host,
        port=port,
        log_level="warning",
        timeout_graceful_shutdown=settings.shutdown_s,
    )
    server = Announcing(configuration)
    if settings.access_log:
        # uvicorn's own remarks stay at warnings: the line below says what they would
        LOGGER.setLevel(logging.INFO)
    server.run()


def _announce(address: str, as_json: bool) -> None:
    """Said when questions are answered, not before: scripts wait for it."""
    if as_json:
        output.print_json({"serving": address, "documentation": f"{address}/docs"})
        sys.stdout.flush()
    else:
        output.out().print(
            f"Serving on [bold]{address}[/] (documentation: {address}/docs). Ctrl-C stops.", soft_wrap=True
        )


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
