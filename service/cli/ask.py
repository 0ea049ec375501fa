"""`selector choose` and `selector explain`: ask for the best implementation of a layer."""

from __future__ import annotations

from collections.abc import Mapping
from keyword import iskeyword
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from .terminal import output, words
from .terminal.options import DatabaseOption, DeviceOption, JsonOption, NoShippedOption, RegimeOption, Words

if TYPE_CHECKING:
    from selector import Candidate, Choice

MemoryOption = Annotated[
    str | None,
    typer.Option(metavar="BYTES", help="The most that it may hold at the peak: 1GiB, 512MB, 4096."),
]
ObjectiveOption = Annotated[str, typer.Option(metavar="time|memory", help="What to make small.")]
OverrideOption = Annotated[
    str | None, typer.Option(metavar="IMPLEMENTATION", help="Take this one, and say what is known of it.")
]


def choose(
    what: Words,
    device: DeviceOption = None,
    memory: MemoryOption = None,
    objective: ObjectiveOption = "time",
    override: OverrideOption = None,
    among: Annotated[
        str | None, typer.Option(metavar="IMPLEMENTATION,...", help="Choose from these alone.")
    ] = None,
    regime: RegimeOption = "launched",
    database: DatabaseOption = None,
    no_shipped: NoShippedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Choose the implementation to use for a layer of given hyperparameters.

    Examples:

    \b
      selector choose hidden=256 batch=32
      selector choose lstm hidden=256 batch=32 seq=50 --memory 1GiB --json
      selector choose lstm hidden=512 batch=64 mode=inference --objective memory
      selector choose lstm hidden=256 batch=32 --among torch_lstm,hoisted
      selector choose rms_norm hidden=2048 rows=8192 --device h200 --regime compiled
    """
    request = _request(device, memory, objective, override, among, regime)
    choice = _ask(what, database, request, no_shipped=no_shipped)
    if as_json:
        output.print_json(choice.to_dict())
        return
    _print(choice, database)
    output.out().print(f"[dim]in Python[/]  {escape(_code(choice, database, request))}", soft_wrap=True)


def explain(
    what: Words,
    device: DeviceOption = None,
    memory: MemoryOption = None,
    objective: ObjectiveOption = "time",
    override: OverrideOption = None,
    among: Annotated[
        str | None, typer.Option(metavar="IMPLEMENTATION,...", help="Choose from these alone.")
    ] = None,
    regime: RegimeOption = "launched",
    database: DatabaseOption = None,
    no_shipped: NoShippedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Explain a choice: what was assumed, on what evidence it rests, and why not the others.

    Examples:

    \b
      selector explain hidden=256 batch=32
      selector explain lstm hidden=256 batch=32 seq=50 --memory 20MiB
    """
    request = _request(device, memory, objective, override, among, regime)
    choice = _ask(what, database, request, no_shipped=no_shipped)
    if as_json:
        output.print_json({"explanation": choice.explain(), "choice": choice.to_dict()})
    else:
        print(words.about(database, choice.explain()))


def _request(
    device: str | None,
    memory: str | None,
    objective: str,
    override: str | None,
    among: str | None,
    regime: str,
) -> dict[str, Any]:
    names = None if among is None else [name.strip() for name in among.split(",") if name.strip()]
    more = {"override": override, "among": names, "regime": regime}
    return {"device": device, "memory": memory, "objective": objective, **more}


def _ask(what: list[str], database: str | None, request: Mapping[str, Any], *, no_shipped: bool) -> Choice:
    from selector import Selector

    operator, given = words.split(what)
    selector = Selector(database, shipped=False if no_shipped else None)
    return selector.choose(operator, **request, **selector.typed(operator, given))


def _print(choice: Choice, database: str | None) -> None:
    from selector.text.units import format_bytes, format_ms

    console = output.out()
    assumed = " (assumed: you named no operator)" if choice.operator_assumed else ""
    facts = Table.grid(padding=(0, 2))
    facts.add_row("[dim]problem[/]", escape(f"{choice.problem.key}{assumed}"))
    facts.add_row("[dim]device[/]", escape(choice.device.name))
    facts.add_row(
        "[dim]choice[/]", f"[bold green]{escape(choice.implementation)}[/]  [dim]source: {choice.source}[/]"
    )
    facts.add_row("[dim]rests on[/]", escape(choice.rests_on))
    console.print(facts)
    table = output.table("implementation", "time", "memory", "source", "remark", numbers=("time", "memory"))
    for candidate in choice.candidates:
        chosen = candidate.name == choice.implementation
        table.add_row(
            escape(candidate.name),
            format_ms(candidate.time_ms),
            format_bytes(candidate.memory_bytes),
            candidate.source or "-",
            escape(_remark(candidate, chosen)),
            style="bold" if chosen else "dim" if candidate.excluded else "",
        )
    console.print("", table, "", sep="\n")
    for caveat in choice.caveats:
        console.print(f"[yellow]note[/]  {escape(words.about(database, caveat))}")


def _code(choice: Choice, database: str | None, request: Mapping[str, Any]) -> str:
    """The same question, and the module if there is one to build, in Python."""
    from selector.selection.catalogue import imported

    problem = choice.problem
    asked = {name: value for name, value in problem.values if name not in problem.assumed}
    asked |= {name: value for name, value in (*request.items(), ("database", database)) if value is not None}
    for name, usual in (("objective", "time"), ("regime", "launched")):
        if asked[name] == usual:
            del asked[name]
    odd = {name: asked.pop(name) for name in list(asked) if not name.isidentifier() or iskeyword(name)}
    words = [repr(problem.operator), *(f"{name}={value!r}" for name, value in asked.items())]
    words += [f"**{odd!r}"] if odd else []
    return f"selector.choose({', '.join(words)}){'' if imported(problem.operator) else '.build()'}"


def _remark(candidate: Candidate, chosen: bool) -> str:
    parts = ["chosen"] if chosen else []
    parts += ["default"] if candidate.default else []
    parts += [f"excluded: {candidate.excluded}"] if candidate.excluded else []
    parts += [candidate.note] if candidate.note else []
    return "; ".join(parts)
