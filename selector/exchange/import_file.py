"""Import of a file of measurements into the database, whole or, on request, its valid lines: `selector
import`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kernel_selector import db
from kernel_selector.kernels.contract import CorruptRecord, Record

from ..errors import BadFile, BadLines, BadRow, Fault
from ..workloads.imported_operator import imported_operators
from .files import printable, refused, require_free
from .parquet import read_parquet
from .readers import Line, Read, format_of, open_file, read_lines
from .t4 import read_results
from .validation import Checker

if TYPE_CHECKING:
    from kernel_selector.db import Database
    from kernel_selector.db.imported import ImportedRow

BATCH = 10_000  # rows that are stored together
SHOWN_FAULTS = 10
Progress = Callable[[int, int], None]  # bytes read so far, and in all


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Options of `selector import`.

    `operator` and `device` are for lines that name none; `naming` are the entries of a T4 configuration
    that name the implementation, `words` hyperparameters whose values are words even where they look like
    numbers. `keep_going` stores the good lines of a file that has bad ones. `rejected` is a file that
    takes the bad lines with their reasons.
    """

    format: str | None = None
    operator: str | None = None
    device: str | None = None
    naming: Sequence[str] = ()
    words: Sequence[str] = ()
    keep_going: bool = False
    rejected: Path | None = None


@dataclass(kw_only=True)
class ImportReport:
    """Counts of an import's lines: new, known, or bad; `faults` are the first of the bad."""

    source: str
    added: int = 0
    known: int = 0
    bad: int = 0
    operators: dict[str, int] = field(default_factory=dict)  # new rows by operator
    faults: list[Fault] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dictionary."""
        return asdict(self)


class _Store:
    """Buffer of rows, which stores those of one operator and device together."""

    def __init__(self, connection: Any, report: ImportReport) -> None:
        self._connection = connection
        self._report = report
        self._now = datetime.now(UTC)
        self._seen: db.imported.Repetitions = Counter()
        self._waiting: dict[tuple[str, str], list[ImportedRow]] = defaultdict(list)
        self._records: dict[str, list[Record]] = defaultdict(list)  # by operator
        self._count = 0

    def add(self, found: tuple[str, str, ImportedRow] | Record) -> None:
        """Add one imported row, or one record of ours."""
        if isinstance(found, Record):
            self._records[found.problem.operator].append(found)
        else:
            operator, device, row = found
            self._waiting[operator, device].append(row)
        self._count += 1
        if self._count >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Store the buffered rows.

        Raises CorruptRecord.
        """
        for (operator, device), rows in self._waiting.items():
            added = db.imported.add(
                self._connection,
                operator=operator,
                device=device,
                rows=rows,
                source=self._report.source,
                imported_at=self._now,
                seen=self._seen,
            )
            self._note(operator, added, len(rows))
        for operator, found in self._records.items():
            self._note(operator, db.records.add(self._connection, found), len(found))
        self._waiting.clear()
        self._records.clear()
        self._count = 0

    def _note(self, operator: str, added: int, given: int) -> None:
        report = self._report
        report.added, report.known = report.added + added, report.known + given - added
        report.operators[operator] = report.operators.get(operator, 0) + added


def import_file(
    path: str | Path,
    database: Database,
    options: ImportOptions | None = None,
    progress: Progress | None = None,
) -> ImportReport:
    """Store the measurements of a file in one transaction; returns a report of its lines.

    The same lines again change nothing. The journal has an entry of what was added. A file with bad lines is
    not stored at all, unless `options.keep_going`. Raises BadFile, BadLines and the errors of the database.
    """
    chosen, file = options or ImportOptions(), Path(path)
    report = ImportReport(source=printable(file.name))
    kind = format_of(file, chosen.format)
    size = file.stat().st_size if file.is_file() else 0
    rejected = _Rejects(chosen.rejected, file)
    with open_file(file) as opened, rejected as rejects, database.write() as connection:

        def read(position: int) -> None:
            if progress is not None:
                progress(position, size)

        given = {"operator": chosen.operator or "", "device": chosen.device or ""}
        checker = Checker(imported_operators(connection), given, frozenset(chosen.words))
        store = _Store(connection, report)
        for found in _checked(_lines(opened, kind, chosen, read), checker):
            if isinstance(found, Fault):
                report.bad += 1
                rejects.add(found)
                if len(report.faults) < SHOWN_FAULTS:
                    report.faults.append(found)
            else:
                store.add(found)
        store.flush()
        if report.bad and not chosen.keep_going:
            raise _refused(file, report)
        if not report.added + report.known + report.bad:
            raise BadFile(f"There are no measurements in {file}.")
        _enter(connection, report)
    return report


def _enter(connection: Any, report: ImportReport) -> None:
    """Write into the journal what an import has added, if anything."""
    if not report.added:
        return
    db.audit.add(
        connection,
        author=db.audit.account(),
        through=db.audit.COMMAND,
        action=db.audit.Action.IMPORT,
        subject=report.source,
        details={
            "added": report.added,
            "known": report.known,
            "bad": report.bad,
            "operators": {name: count for name, count in report.operators.items() if count},
        },
    )


def _lines(file: IO[bytes], kind: str, options: ImportOptions, read: Read) -> Iterator[Line | Fault]:
    if kind == "t4":
        return read_results(file, options.naming)
    return read_parquet(file, read) if kind == "parquet" else read_lines(file, kind, read)


def _checked(
    lines: Iterator[Line | Fault], checker: Checker
) -> Iterator[Fault | Record | tuple[str, str, ImportedRow]]:
    for line in lines:
        if isinstance(line, Fault):
            yield line
            continue
        try:
            if line.record is not None:
                record = Record.from_json(line.record)
                db.records.check(record)
                yield record
            else:
                yield checker.row(line.fields, text=line.text)
        except (BadRow, CorruptRecord) as error:
            yield Fault(line.number, str(error))


def _refused(file: Path, report: ImportReport) -> BadLines:
    good = report.added + report.known
    first = "; ".join(f"line {fault.line}: {fault.reason}" for fault in report.faults)
    more = f"; and {report.bad - len(report.faults)} more" if report.bad > len(report.faults) else ""
    return BadLines(
        f"{report.bad} of {report.bad + good} lines of {file} are no measurements, so nothing was stored "
        f"(--keep-going stores the other {good}): {first}{more}.",
        report.faults,
        report.bad,
    )


class _Rejects:
    """JSON lines file of bad lines with their reasons; none where not requested."""

    def __init__(self, path: Path | None, reading: Path) -> None:
        self._path = path
        self._reading = reading
        self._file: IO[str] | None = None

    def __enter__(self) -> _Rejects:
        if self._path is not None:
            require_free(self._path, self._reading)
            try:
                self._file = self._path.open("w", encoding="utf-8")
            except OSError as error:
                raise refused(self._path, error) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, fault: Fault) -> None:
        """Write one bad line."""
        if self._file is not None:
            self._file.write(json.dumps({"line": fault.line, "reason": fault.reason}) + "\n")
