"""`selector token`: who may ask the service."""

from __future__ import annotations

from typing import Annotated

import typer

from ..terminal import output
from ..terminal.options import DatabaseOption, JsonOption
from .measurements import ReasonOption

app = typer.Typer(
    name="token",
    help="Who may ask the service over a network, and who may send it measurements.",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Who or what shows it, such as worker-7.")]
Days = Annotated[
    float | None, typer.Option(metavar="N", help="Days until it expires. Default: it does not expire.")
]


@app.command()
def create(
    name: Name,
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="read|measure|admin", help="What it allows; give several. Default: read."),
    ] = None,
    days: Days = None,
    untrusted: Annotated[
        bool,
        typer.Option(
            "--untrusted", help="What it sends counts when a second author agrees. Default: see `trust`."
        ),
    ] = False,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token. Its secret is printed once and kept nowhere.

    Examples:

    \b
      selector token create scheduler --days 90
      selector token create worker-7 --scope measure
      selector token create guest --scope measure --untrusted
    """
    from ...tokens import create_token

    secret = create_token(database, name, scopes=scope or ["read"], days=days, trusted=not untrusted)
    _print(name, secret, as_json=as_json)


@app.command()
def rotate(
    name: Name,
    grace_hours: Annotated[
        float, typer.Option(metavar="N", help="Hours for which the old secret stays valid.")
    ] = 24.0,
    days: Days = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new secret with the same scopes; the old one ends a while later.

    Examples:

    \b
      selector token rotate scheduler
      selector token rotate worker-7 --grace-hours 0
    """
    from ...tokens import rotate_token

    _print(name, rotate_token(database, name, grace_hours=grace_hours, days=days), as_json=as_json)


@app.command()
def revoke(name: Name, database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """End a token now. Running services notice within about a second.

    Examples:

    \b
      selector token revoke worker-7
    """
    from ...tokens import revoke_token

    revoke_token(database, name)
    if as_json:
        output.print_json({"name": name, "revoked": True})
    else:
        output.out().print(f"Revoked: {name}")


@app.command()
def trust(
    name: Name, reason: ReasonOption, database: DatabaseOption = None, as_json: JsonOption = False
) -> None:
    """Let what a token sent count, but for flips of choices: these wait for a second run.

    Examples:

    \b
      selector token trust guest --reason "measured again by worker-7"
    """
    _trust(name, reason, database, trusted=True, as_json=as_json)


@app.command()
def distrust(
    name: Name, reason: ReasonOption, database: DatabaseOption = None, as_json: JsonOption = False
) -> None:
    """Let what a token sent and sends count only where a second author agrees; also of one that has ended.

    Examples:

    \b
      selector token distrust worker-9 --reason "its times are too short"
    """
    _trust(name, reason, database, trusted=False, as_json=as_json)


def _trust(name: str, reason: str, database: str | None, *, trusted: bool, as_json: bool) -> None:
    from ...tokens import trust_token

    trust_token(database, name, trusted=trusted, reason=reason)
    if as_json:
        output.print_json({"name": name, "trusted": trusted})
    else:
        output.out().print(f"{'Trusted' if trusted else 'Not trusted any more'}: {name}", markup=False)


@app.command(name="list")
def list_all(database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """List all tokens, those that have ended too.

    Examples:

    \b
      selector token list
      selector token list --json
    """
    from ...tokens import list_tokens

    found = list_tokens(database)
    if as_json:
        output.print_json({"tokens": found})
        return
    table = output.table("name", "scopes", "valid", "trusted", "created", "expires", "revoked")
    for token in found:
        ends = [(token[name] or "")[:16] for name in ("created_at", "expires_at", "revoked_at")]
        words = ["yes" if token[name] else "no" for name in ("valid", "trusted")]
        table.add_row(token["name"], " ".join(token["scopes"]), *words, *ends)
    output.out().print(table if found else "There are no tokens: `selector token create NAME` makes one.")


def _print(name: str, secret: str, *, as_json: bool) -> None:
    if as_json:
        output.print_json({"name": name, "secret": secret})
    else:
        print(secret)
        output.err().print("This is shown once. Send it as `Authorization: Bearer ...`.", style="dim")
