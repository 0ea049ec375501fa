"""`selector extender`."""

from __future__ import annotations

import json
import ssl
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .serve import is_loopback, require_free, run_announced, url
from .terminal import output
from .terminal.options import DatabaseOption, JsonOption, NoShippedOption
from .terminal.signals import ended_by_signals

FileOption = typer.Option(exists=True, dir_okay=False, metavar="FILE")


@ended_by_signals()
def extender(
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=1, max=65535, help="Port to listen on.")] = 8010,
    nodes: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help='JSON {"node": "NVIDIA-H200", ...}, for a scheduler that sends names alone.',
        ),
    ] = None,
    certificate: Annotated[Path | None, FileOption] = None,
    key: Annotated[Path | None, FileOption] = None,
    client_ca: Annotated[Path | None, FileOption] = None,
    database: DatabaseOption = None,
    no_shipped: NoShippedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Answer Kubernetes' scheduler: which nodes fit a pod, and how well. Until Ctrl-C.

    It listens once it has warmed up, which takes some seconds: the scheduler waits for half of one.
    It can show no token, so another address than the loopback interface needs --certificate, --key and
    --client-ca: then only clients with a certificate of that authority are answered.

    Examples:

    \b
      selector extender
      selector extender --nodes nodes.json --port 8010
    """
    from selector import Selector
    from selector.selection.database import named_database

    from ..app import collect_seldom
    from ..extender import PREFIX, create_extender

    files = certificate, key, client_ca
    secured = None not in files
    if any(files) and not secured:
        raise typer.BadParameter("--certificate, --key and --client-ca go together: give all three or none.")
    if not (secured or is_loopback(host)):
        raise typer.BadParameter(
            f"listening on {host} needs --certificate, --key and --client-ca: the scheduler shows no token."
        )
    require_free(host, port)
    tls: dict[str, Any] = {}
    if secured:
        tls = {
            "ssl_certfile": certificate,
            "ssl_keyfile": key,
            "ssl_ca_certs": str(client_ca),
            "ssl_cert_reqs": ssl.CERT_REQUIRED,
        }
    import uvicorn

    from ..connections import BoundedProtocol
    from ..logs import log_config

    collect_seldom()
    application = create_extender(
        Selector(named_database(database), shipped=False if no_shipped else None, background=True),
        nodes=_products(nodes),
    )
    configuration = uvicorn.Config(
        application,
        http=BoundedProtocol,
        log_config=log_config(),
        host=host,
        port=port,
        log_level="warning",
        **tls,
    )
    try:
        configuration.load()
    except OSError as error:  # of ssl, which names no file
        raise typer.BadParameter(f"{', '.join(map(str, files))}: TLS cannot use them: {error}") from None
    address = f"{url('https' if secured else 'http', host, port)}{PREFIX}"
    run_announced(configuration, lambda: _announce(address, as_json))


def _announce(address: str, as_json: bool) -> None:
    if as_json:
        output.print_json({"serving": address})
        sys.stdout.flush()
    else:
        output.err().print(f"Answering at [bold]{address}[/]. Ctrl-C stops.", soft_wrap=True)


def _products(file: Path | None) -> dict[str, str]:
    if file is None:
        return {}
    try:
        found = json.loads(file.read_text())
    except (ValueError, OSError, RecursionError) as error:
        raise typer.BadParameter(f"{file} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise typer.BadParameter(f'{file}: expected {{"node": "product", ...}}.')
    return found
