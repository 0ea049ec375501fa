"""`selector import`, `export`, `merge`, `diff` and `promote`: measurements between files and databases."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from .terminal import output
from .terminal.options import DatabaseOption, JsonOption

if TYPE_CHECKING:
    from selector.exchange.export import Difference
    from selector.exchange.import_file import ImportReport

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A file of measurements.")]
FormatOption = Annotated[
    str | None, typer.Option("--format", metavar="jsonl|csv|t4|parquet", help="Default: by the file's name.")
]
WrittenFormatOption = Annotated[
    str | None, typer.Option("--format", metavar="jsonl|csv|t4", help="Default: by the file's name.")
]
SourceArgument = Annotated[str, typer.Argument(metavar="FROM", help="A SQLite file, or a URL.")]

NO_SOURCE = "There is nothing to take from, and nothing was changed: name a database that has measurements."


def import_(
    file: FileArgument,
    format_: FormatOption = None,
    operator: Annotated[str | None, typer.Option(help="Of lines that name none.")] = None,
    device: Annotated[str | None, typer.Option(help="Of lines that name none.")] = None,
    naming: Annotated[
        str,
        typer.Option(metavar="NAME,...", help="Entries of a T4 configuration that name the implementation."),
    ] = "",
    words: Annotated[
        str,
        typer.Option(metavar="NAME,...", help="Hyperparameters that are words even where they are digits."),
    ] = "",
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Store the good lines of a file that has bad ones.")
    ] = False,
    rejected: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the bad lines' numbers and reasons there.")
    ] = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Store measurements that others took, of any operator; train and choose from them as from ours.

    JSON lines have operator, device, implementation, hyperparameters, milliseconds, bytes, status and reason;
    in CSV and Parquet every other column is a hyperparameter. Files may be compressed by gzip. Nothing of a
    file with bad lines is stored, or its good lines with --keep-going; the bad lines are named either way.

    Examples:

    \b
      selector import measured.jsonl
      selector import measured.csv.gz --operator grouped_gemm --device h200
      selector import results.json --format t4 --naming block_size_x,block_size_y
    """
    from selector.exchange.import_file import ImportOptions, import_file
    from selector.profiling.profile import opened

    from .terminal.progress import ProgressView

    options = ImportOptions(
        format=format_,
        operator=operator,
        device=device,
        naming=_names(naming),
        words=_names(words),
        keep_going=keep_going,
        rejected=rejected,
    )
    with ProgressView() as view, opened(database, create=True) as store:
        view.busy(f"Importing {escape(file.name)}")
        report = import_file(file, store, options, view.amount)
        view.finish()
    if as_json:
        output.print_json(report.to_dict())
    else:
        _print(report, database)


def export(
    file: FileArgument,
    operator: Annotated[str | None, typer.Option(help="Only its measurements.")] = None,
    format_: WrittenFormatOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write measurements to a file that `selector import` reads.

    Examples:

    \b
      selector export everything.jsonl
      selector export gemm.csv --operator grouped_gemm
      selector export gemm.json --operator grouped_gemm --format t4
    """
    from selector.exchange import export as transfer
    from selector.profiling.profile import opened

    with opened(database) as store:
        count = transfer.export(file, store, operator=operator, kind=format_)
        waiting = transfer.waiting(store, operator)
    if as_json:
        output.print_json({"file": str(file), "measurements": count, "waiting": waiting})
    else:
        output.out().print(
            f"{output.number_of(count, 'measurement')} written to {file}", markup=False, soft_wrap=True
        )
        _print_waiting(waiting)


def merge(source: SourceArgument, database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Add the measurements of another database to this one.

    Nothing is replaced. The same measurement in both is one; of two runs of the same candidate both stay, and
    the later one counts: these are "repeated".

    Examples:

    \b
      selector merge node7.sqlite
      selector merge node7.sqlite --database postgresql://user@host/name
    """
    from selector.exchange import export as transfer
    from selector.profiling.profile import opened

    with opened(source, otherwise=NO_SOURCE) as one, opened(database, create=True) as other:
        _report(transfer.merge(one, other), "added", as_json)


def diff(source: SourceArgument, database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Say what `selector merge` would add, and what of it was measured here before.

    Examples:

    \b
      selector diff node7.sqlite
    """
    from selector.exchange import export as transfer
    from selector.profiling.profile import opened

    with opened(source, otherwise=NO_SOURCE) as one, opened(database) as other:
        _report(transfer.diff(one, other), "not there", as_json)


def promote(source: SourceArgument, database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Add the measurements of another database and its latest cost models: this one then answers as it does.

    Examples:

    \b
      selector promote tried.sqlite --database postgresql://user@host/name
    """
    from selector.exchange import export as transfer
    from selector.profiling.profile import opened

    with opened(source, otherwise=NO_SOURCE) as one, opened(database, create=True) as other:
        found, models = transfer.promote(one, other)
    _report(found, "added", as_json, models=models)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _print(report: ImportReport, database: str | None) -> None:
    from selector.selection.database import same_database

    console = output.out()
    where = same_database(database)
    known = f", {report.known} known before" if report.known or not report.added else ""
    counts = f"{report.added} new{known}, {report.bad} bad"
    console.print(f"{report.source}: {counts}", markup=False, soft_wrap=True)
    for fault in report.faults:
        console.print(f"  line {fault.line}: {fault.reason}", markup=False, soft_wrap=True)
    if report.bad > len(report.faults):
        console.print(f"  and {report.bad - len(report.faults)} more")
    for operator in report.operators:
        console.print(f"Next: selector train {shlex.quote(operator)}{where}", markup=False, soft_wrap=True)


def _print_waiting(count: int) -> None:
    """Say what stays where it is, because it does not count there yet."""
    if count:
        words = f"{output.number_of(count, 'measurement')} left out, for which nobody has vouched yet"
        output.out().print(f"{words}: see `selector measurements waiting`", soft_wrap=True)


def _report(found: Difference, word: str, as_json: bool, *, models: int | None = None) -> None:
    if as_json:
        output.print_json(found.to_dict() | ({} if models is None else {"models": models}))
        return
    table = output.table("operator", word, "known", "repeated", numbers=(word, "known", "repeated"))
    for operator in sorted({*found.new, *found.known}):
        counts = (found.new[operator], found.known[operator], found.repeated[operator])
        table.add_row(escape(operator), *map(str, counts))
    console = output.out()
    console.print(table if found.new or found.known else "There are no measurements.")
    _print_waiting(found.waiting.total())
    if models is not None:
        console.print(f"{output.number_of(models, 'cost model')} added")
