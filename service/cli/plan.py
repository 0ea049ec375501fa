"""`selector plan`: a whole model under a memory budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from .terminal import output, words
from .terminal.options import DatabaseOption, DeviceOption, JsonOption, NoShippedOption

if TYPE_CHECKING:
    from selector.planning.pareto import Point
    from selector.planning.plan import Plan

What = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL [NAME=VALUE...]", help="A published model, and sizes to change: bert-large seq=128."
    ),
]


def plan(
    what: What,
    device: DeviceOption = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="Of everything: 16GiB. Default: the device's memory."),
    ] = None,
    batch: Annotated[str, typer.Option(metavar="auto|N", help="Samples at once.")] = "auto",
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help="none, sgd, momentum, adamw or fused_adamw.")
    ] = "fused_adamw",
    accumulate: Annotated[int, typer.Option(metavar="N", help="Micro-batches a step.")] = 1,
    no_recompute: Annotated[bool, typer.Option("--no-recompute", help="Run no block twice.")] = False,
    cuda_graphs: Annotated[
        bool, typer.Option("--cuda-graphs", help="Steps are replayed: launching costs nothing.")
    ] = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="Blocks are replayed, as by selector.replay; none is run twice.")
    ] = False,
    margin: Annotated[float, typer.Option(metavar="SHARE", help="Of the limit, to be left free.")] = 0.05,
    exclude: Annotated[
        str | None, typer.Option(metavar="A,B", help="Implementations that are not wanted: torch_compile.")
    ] = None,
    pareto: Annotated[bool, typer.Option("--pareto", help="Throughput at a dozen limits.")] = False,
    svg: Annotated[
        Path | None, typer.Option(dir_okay=False, metavar="FILE", help="Draw the frontier (with --pareto).")
    ] = None,
    database: DatabaseOption = None,
    no_shipped: NoShippedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Plan a model's training within a memory limit: which implementations, and how many samples at once.

    The device need not be here. --json prints what `python -m benchmarks.models MODEL --plan FILE` runs.

    Examples:

    \b
      selector plan bert-large --device h200 --memory 16GiB
      selector plan gpt2-medium seq=512 --device h200 --memory 24GiB --batch 32 --json
      selector plan bert-large --device h200 --pareto --svg bert.svg
    """
    from selector.planning.training_setup import Training

    training = Training(
        optimizer=optimizer,
        accumulate=accumulate,
        recompute=not no_recompute,
        cuda_graphs=cuda_graphs,
        replayed=replay,
        margin=margin,
        exclude=tuple(exclude.split(",")) if exclude else (),
    )
    asked: dict[str, Any] = {"device": device, "training": training, "database": database}
    asked["shipped"] = False if no_shipped else None
    model = _model(what)
    if pareto or svg is not None:
        if batch != "auto":
            raise typer.BadParameter(f"--batch {batch}: a frontier has the best batch at each limit.")
        _frontier(model, memory, svg, asked, as_json=as_json)
    else:
        _plan(model, memory, batch, asked, as_json=as_json)


def fits(
    what: What,
    device: DeviceOption = None,
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Samples at once.")] = 1,
    reserve: Annotated[
        str, typer.Option(metavar="SHARE", help="What stays free: 5%, or bytes such as 2GiB.")
    ] = "5%",
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help="none, sgd, momentum, adamw or fused_adamw.")
    ] = "fused_adamw",
    accumulate: Annotated[int, typer.Option(metavar="N", help="Micro-batches a step.")] = 1,
    database: DatabaseOption = None,
    no_shipped: NoShippedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say whether a model's training fits into the memory of a device, with the peak by kind of memory.

    The device need not be here: any that has a name.

    Examples:

    \b
      selector fits bert-large --device a100-40gb --batch 32
      selector fits gpt2-medium seq=512 --device l4 --batch 8 --reserve 2GiB --json
    """
    import selector
    from selector.planning.training_setup import Training

    found = selector.fits(
        _model(what),
        device,
        batch=batch,
        reserve=reserve,
        training=Training(optimizer=optimizer, accumulate=accumulate),
        database=database,
        shipped=False if no_shipped else None,
    )
    if as_json:
        output.print_json(found.to_dict())
    else:
        output.out().print(escape(found.explain()), soft_wrap=True)


def _model(what: list[str]) -> Any:
    from selector.workloads.published_models import published

    name, given = words.split(what)
    if name is None:
        raise typer.BadParameter("no model: expected a published one, such as bert-large.")
    return published(name, **{size: _number(value) for size, value in given.items()})


def _number(text: str) -> int | float | bool | str:
    """What a size is written as: a whole number, another one, true or false, or a word."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _plan(model: Any, memory: str | None, batch: str, asked: dict[str, Any], *, as_json: bool) -> None:
    import selector

    size = int(batch) if batch.isascii() and batch.isdigit() else batch
    found = selector.plan(model, memory_limit=memory, batch=size, **asked)
    if as_json:
        output.print_json(found.to_dict())
    else:
        _print(found)


def _frontier(
    model: Any, memory: str | None, svg: Path | None, asked: dict[str, Any], *, as_json: bool
) -> None:
    import selector
    from selector.planning.drawing import draw

    if svg is not None and not svg.parent.is_dir():
        raise typer.BadParameter(f"--svg {svg}: there is no folder {svg.parent}; make it first.")
    points = selector.pareto(model, memory_limit=memory, **asked)
    if svg is not None:
        svg.write_text(draw(points, f"{model.name} on {asked['device'] or 'this machine'}"))
    if as_json:
        output.print_json({"model": model.name, "points": [point.to_dict() for point in points]})
    else:
        _print_points(points)


def _print(found: Plan) -> None:
    from selector.text.units import format_bytes, format_ms

    console = output.out()
    console.print(f"[bold]{escape(found.headline)}[/]", soft_wrap=True)
    numbers = ("layers", "time", "holds")
    table = output.table("layers", "part", "implementation", "time", "holds", "source", numbers=numbers)
    for one in found.layers:
        again = ", recomputed" if one.recomputed else ""
        table.add_row(
            str(one.count),
            escape(one.part),
            f"{one.implementation}{again}",
            format_ms(one.device_ms),
            format_bytes(one.held_bytes),
            one.source,
            style="" if one.default else "bold",
        )
    console.print("", table, "", sep="\n")
    parts = (f"{name} {format_bytes(size)}" for name, size in found.memory.items())
    console.print(f"[dim]memory[/]   {', '.join(parts)}", soft_wrap=True)
    if found.default is not None:
        console.print(f"[dim]default[/]  {escape(found.default.headline)}", soft_wrap=True)
        console.print(f"[dim]gain[/]     {found.speed_up:.2f}x, over {found.baseline}", soft_wrap=True)
    for caveat in found.caveats:
        console.print(f"[yellow]note[/]     {escape(caveat)}", soft_wrap=True)


def _print_points(points: list[Point]) -> None:
    from selector.text.units import format_bytes

    names = ("limit", "batch", "samples/s", "peak", "default batch", "default samples/s", "ratio")
    table = output.table(*names, numbers=names)
    for point in points:
        own = point.default_samples_per_s
        table.add_row(
            format_bytes(point.limit_bytes),
            str(point.batch),
            f"{point.samples_per_s:.4g}",
            format_bytes(point.peak_bytes),
            str(point.default_batch or "-"),
            f"{own:.4g}" if own else "-",
            f"{point.samples_per_s / own:.2f}x" if own else "-",
        )
    output.out().print(table)
