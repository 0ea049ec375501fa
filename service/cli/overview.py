"""`selector operators` and `selector devices`: what is known."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from .terminal import output
from .terminal.options import DatabaseOption, JsonOption


def operators(
    operator: Annotated[str | None, typer.Argument(metavar="[OPERATOR]", help="Only this one.")] = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the operators with their hyperparameters and implementations, imported ones last.

    Examples:

    \b
      selector operators
      selector operators lstm
      selector operators --json
    """
    from kernel_selector.kernels import registry
    from selector import Selector
    from selector.selection.catalogue import unknown_operator

    imported = [one for one in Selector(database).operators() if one["imported"]]
    found = [
        operator.describe() | {"implementations": _implementations(name)}
        for name, operator in registry.operators().items()
    ] + imported
    if operator is not None:
        found = [one for one in found if one["name"] == operator]
        if not found:
            raise unknown_operator(operator, [one["name"] for one in imported])
    if as_json:
        output.print_json({"operators": found})
        return
    console = output.out()
    for described in found:
        console.print(f"\n[bold]{escape(described['name'])}[/]  {escape(described['title'])}")
        table = output.table("hyperparameter", "default", "expected", "also", "meaning")
        for spec in described["hyperparameters"]:
            table.add_row(
                escape(spec["name"]),
                _default(spec["default"]),
                escape(spec["expected"]),
                ", ".join(spec["aliases"]),
                spec["help"],
            )
        console.print(table)
        table = output.table("implementation", "summary")
        for one in described["implementations"]:
            default = " [green](default)[/]" if one["default"] else ""
            table.add_row(f"{escape(one['name'])}{default}", escape(one["summary"]))
        console.print(table)


def devices(as_json: JsonOption = False) -> None:
    """List the devices: this machine's, with measured rates, and those known by name.

    A known GPU need not be in this machine to be asked about: selector choose hidden=256 batch=32
    --device h200 answers from the measurements that the database has of it.

    Examples:

    \b
      selector devices
      selector devices --json
    """
    from selector.profiling.status import known_devices, local_devices

    here, known = local_devices(), known_devices()
    if as_json:
        output.print_json({"here": here, "known": known})
        return
    output.out().print("", _here(here), "", _known(known), sep="\n")


def _implementations(operator: str) -> list[dict[str, Any]]:
    from kernel_selector.kernels import registry

    return [
        {"name": one.name, "summary": one.summary, "default": one.default, "version": one.version}
        for one in registry.implementations(operator).values()
    ]


def _default(value: object) -> str:
    if value is None:
        return "[yellow]required[/]"
    return f"same as {value[1:]}" if isinstance(value, str) and value.startswith("=") else str(value)


def _here(found: list[dict[str, Any]]) -> Table:
    """This machine's devices with their measured rates."""
    from selector.text.units import format_bytes

    numbers = ("units", "memory", "copy", "matmul", "launch")
    table = output.table("this machine", "name", *numbers, numbers=numbers)
    for device in found:
        rates = device["matmul_flops_per_s"]
        copy, launch = device["copy_bytes_per_s"], device["launch_us"]
        table.add_row(
            device["torch_device"],
            device["name"],
            str(device["multiprocessors"] or "-"),
            format_bytes(device["memory_bytes"]),
            f"{format_bytes(copy)}/s" if copy else "-",
            f"{rates['float32'] / 1e9:.3g} GFLOP/s" if "float32" in rates else "-",
            f"{launch:.1f} us" if launch else "-",
        )
    return table


def _known(found: list[dict[str, Any]]) -> Table:
    """What may be asked about without being here."""
    from selector.text.units import format_bytes

    numbers = ("capability", "units", "memory", "L2 cache")
    table = output.table("known by name", *numbers, numbers=numbers)
    for device in found:
        capability = device["compute_capability"]
        table.add_row(
            device["key"],
            ".".join(map(str, capability)) if capability else "-",
            str(device["multiprocessors"] or "-"),
            format_bytes(device["memory_bytes"]),
            format_bytes(device["l2_bytes"]),
        )
    return table
