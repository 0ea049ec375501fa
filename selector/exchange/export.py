"""Export of measurements to files, and merging of databases."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from kernel_selector import db
from kernel_selector.db import Database, transfer
from kernel_selector.db.transfer import Difference
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import UnknownOperator
from kernel_selector.kernels.contract.errors import shorten, suggest

from ..errors import InvalidRequest
from ..selection.confirmation import unconfirmed
from ..workloads.imported_operator import described, imported_operators
from . import readers, t4
from .files import printable, require_free, written
from .validation import FIELDS, SCHEMA

__all__ = ["Difference", "diff", "export", "merge", "promote", "waiting"]
FORMATS = ("jsonl", "csv", "t4")
ENDINGS = [ending for ending, name in readers.FORMATS.items() if name in FORMATS]


def export(
    path: str | Path, database: Database, *, operator: str | None = None, kind: str | None = None
) -> int:
    """Number of measurements written to a file that `selector import` reads.

    JSON lines take everything: imported measurements and records of our own. CSV and T4 take those of one
    imported operator, on one device for T4. A name that ends in `.gz` is of a file compressed by gzip. A file
    that is there is replaced when all is written, but never a database. The format is that of the name's
    ending unless `kind` says it. Records that wait for somebody to agree are left out: `waiting` says how
    many.
    Raises UnknownOperator, InvalidRequest and the errors of the database.
    """
    file = Path(path)
    is_packed = file.suffix.lower() == ".gz"
    suffix = (file.with_suffix("") if is_packed else file).suffix.lower()
    require_free(file)
    kind = kind or readers.FORMATS.get(suffix)
    if kind is None:
        raise InvalidRequest(
            f"{shorten(file.name)}: its ending says no format. Expected {', '.join(ENDINGS)}, or one of "
            f"these and .gz; or name the format (--format): {', '.join(FORMATS)}."
        )
    if kind not in FORMATS:
        raise InvalidRequest(f"format={shorten(kind)}: expected one of {', '.join(FORMATS)}.")
    with database.read() as connection:
        imported = imported_operators(connection)
        known = {*imported, *registry.operators()}
        if operator is not None and operator not in known:
            raise UnknownOperator(f"Unknown operator {shorten(operator)}. {suggest(operator, known)}")
        if kind != "jsonl":
            _require_one(operator, imported, kind)
        with written(file) as part, _opened(part, is_packed=is_packed) as opened:
            return _write(opened, connection, operator, kind)


def _opened(path: Path, *, is_packed: bool) -> IO[str]:
    if is_packed:
        return gzip.open(path, "wt", encoding="utf-8", newline="")
    return path.open("w", encoding="utf-8", newline="")


def _require_one(operator: str | None, imported: Mapping[str, Any], kind: str) -> None:
    if operator is None or operator not in imported:
        raise InvalidRequest(
            f"A {kind} file has measurements of one imported operator: name one of "
            f"{', '.join(imported) or 'those that there are (none)'}, or write JSON lines, which take all."
        )
    devices = imported[operator].devices
    if kind == "t4" and len(devices) > 1:
        raise InvalidRequest(
            f"A T4 file is of one device, and {operator} was measured on {', '.join(devices)}: write JSON "
            "lines or CSV."
        )


def _write(file: IO[str], connection: Any, operator: str | None, kind: str) -> int:
    rows = transfer.rows(connection, operator=operator)
    if kind == "csv":
        return _write_csv(file, rows)
    if kind == "t4":
        return _write_t4(file, rows)
    count = 0
    for row in rows:
        del row["imported_at"]
        file.write(json.dumps({"schema": SCHEMA, **row}, ensure_ascii=False, allow_nan=False) + "\n")
        count += 1
    left_out = _waiting(connection, operator)
    for record in db.records.find(connection, operator=operator, regime=None, without=left_out):
        file.write(record.to_json() + "\n")
        count += 1
    return count


def waiting(database: Database, operator: str | None = None) -> int:
    """Number of records that wait for somebody to agree, of an operator or all. Raises as the database."""
    with database.read() as connection:
        return len(_waiting(connection, operator))


def _waiting(connection: Any, operator: str | None = None) -> dict[int, str]:
    """Ids of the records that wait for somebody to agree, each with its operator."""
    names = [name for name in registry.operators() if operator in (None, name)]
    return {one: name for name in names for one in unconfirmed(connection, operator=name)}


def _write_csv(file: IO[str], rows: Iterator[dict[str, Any]]) -> int:
    writer, count = csv.writer(file, lineterminator="\n"), 0
    names: list[str] = []
    for count, row in enumerate(rows, start=1):
        if count == 1:
            names = sorted(row["hyperparameters"])
            writer.writerow([*FIELDS, *names])
        values = [_cell(row["hyperparameters"][name]) for name in names]
        writer.writerow([*("" if row[name] is None else row[name] for name in FIELDS), *values])
    return count


def _cell(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def _write_t4(file: IO[str], rows: Iterator[dict[str, Any]]) -> int:
    results, metadata = [], {}
    for row in rows:
        metadata = {"operator": row["operator"], "device": row["device"]}
        results.append(t4.result_of(row, row["imported_at"].isoformat()))
    document = {"schema_version": t4.VERSION, "metadata": metadata, "results": results}
    json.dump(document, file, ensure_ascii=False, allow_nan=False)
    return len(results)


def diff(source: Database, target: Database) -> Difference:
    """Difference that `merge` would add to the target.

    Raises Contradiction and the errors of the databases.
    """
    with source.read() as one, target.read() as other:
        _check(one, other)
        return transfer.difference(one, other, waiting=_waiting(one))


def merge(source: Database, target: Database) -> Difference:
    """Add the source's measurements that the target lacks, all or none; returns the difference.

    Nothing is ever replaced: of two of the same candidate both stay, and the later one counts. What
    waits for somebody to agree stays where it is: in another database it would be the owner's. The journal
    of the target has an entry of what was added. Raises Contradiction where one operator has other
    hyperparameters here than there, and the errors of the databases.
    """
    with source.read() as one, target.write() as other:
        _check(one, other)
        found = transfer.merge(one, other, waiting=_waiting(one))
        _enter(other, db.audit.Action.MERGE, source, found)
        return found


def promote(source: Database, target: Database) -> tuple[Difference, int]:
    """Add the source's measurements and its latest cost models: the target then answers as the source did.

    Returns what was added and how many models were. The journal has an entry as of `merge`.
    """
    with source.read() as one, target.write() as other:
        _check(one, other)
        found = transfer.merge(one, other, waiting=_waiting(one))
        models = transfer.copy_models(one, other)
        _enter(other, db.audit.Action.PROMOTE, source, found, models=models)
        return found, models


def _enter(target: Any, action: db.audit.Action, source: Database, found: Difference, **more: int) -> None:
    """Write into the journal what came from another database, if anything did."""
    counts = {"added": found.new.total(), **more}
    if not any(counts.values()):
        return
    db.audit.add(
        target,
        author=db.audit.account(),
        through=db.audit.COMMAND,
        action=action,
        subject=printable(source.name),
        details={**counts, "known": found.known.total(), "operators": dict(found.new)},
    )


def _check(source: Any, target: Any) -> None:
    batches = [*db.imported.batches(source), *db.imported.batches(target)]
    for name in {batch["operator"] for batch in batches}:
        described(name, [batch for batch in batches if batch["operator"] == name])
