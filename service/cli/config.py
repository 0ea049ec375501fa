"""`selector config`."""

from __future__ import annotations

from .terminal import output
from .terminal.options import JsonOption


def config(as_json: JsonOption = False) -> None:
    """Show the settings of the service, and where each comes from: default, file or environment.

    Examples:

    \b
      selector config
      SELECTOR_MAX_BODY_BYTES=131072 selector config --json
    """
    from dataclasses import asdict

    from ..settings import PREFIX, in_force, misspelt

    found = in_force()
    for remark in misspelt():
        output.err().print(remark, soft_wrap=True)
    if as_json:
        output.print_json({"settings": [asdict(item) for item in found]})
        return
    table = output.table("setting", "value", "from", "meaning", numbers=("value",))
    for item in found:
        table.add_row(PREFIX + item.name.upper(), str(item.value).lower(), item.source, item.meaning)
    output.out().print(table)
