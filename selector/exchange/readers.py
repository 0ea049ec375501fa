"""Line-by-line readers of measurement files: JSON lines and CSV, as they are or compressed by gzip.

Nothing is skipped: a line comes out as fields, or as a fault with the reason. A last line without its line
end may be cut off in the middle of a number, so it is a fault where that cannot be seen otherwise.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..errors import BadFile, Fault
from .validation import FIELDS

FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".json": "t4", ".parquet": "parquet"}
GZIP_MARK = b"\x1f\x8b"
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)  # errors of reading what is compressed
UTF8_MARK = b"\xef\xbb\xbf"
OTHER_MARKS = (b"\xff\xfe", b"\xfe\xff", b"PK\x03\x04", b"SQLite format 3\0")
LONGEST_MARK = max(map(len, OTHER_MARKS))
LONGEST_LINE = 2**20
READ_EVERY = 1000  # lines between two words on how far it is


@dataclass(frozen=True, slots=True)
class Line:
    """Line with its fields, as strings if `text`; for a record of ours, only `record`."""

    number: int
    fields: Mapping[str, Any]
    text: bool = False
    record: str | None = None


Read = Callable[[int], None]  # told how many bytes were read


def format_of(path: Path, given: str | None) -> str:
    """Format of a file: the given one, else from its name.

    Raises BadFile.
    """
    known = sorted(set(FORMATS.values()))
    name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    found = given or FORMATS.get(name.suffix.lower())
    if found not in known:
        raise BadFile(f"{given or path.name!r} is of no known format: give --format {', '.join(known)}.")
    return found


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """Open file, unpacked where it is compressed by gzip.

    Raises BadFile where it cannot be read, or is not UTF-8 text according to its first bytes.
    """
    try:
        raw = path.open("rb")
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}.") from error
    with raw:
        packed = _start(path, raw).startswith(GZIP_MARK)
        file: Any = gzip.GzipFile(fileobj=raw) if packed else raw
        start = _start(path, file)
        if start.startswith(OTHER_MARKS):
            raise BadFile(
                f"{path} is not text in UTF-8 (it starts with {start[:4]!r}): convert or unpack it."
            )
        if start.startswith(UTF8_MARK):
            file.read(len(UTF8_MARK))
        yield file


def _start(path: Path, file: Any) -> bytes:
    """First bytes of a file, which are left in it: a pipe cannot be read twice."""
    try:
        start: bytes = file.peek(LONGEST_MARK)[:LONGEST_MARK]
    except DAMAGED as error:
        raise BadFile(f"{path} cannot be unpacked: {error}.") from error
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}.") from error
    return start


def read_lines(file: IO[bytes], kind: str, read: Read) -> Iterator[Line | Fault]:
    """Lines of a JSON lines or CSV file, in order, each parsed or as a fault."""
    return (_csv if kind == "csv" else _json_lines)(file, read)


def _decoded(file: IO[bytes], read: Read) -> Iterator[tuple[int, str | Fault]]:
    """Numbered lines; those that are not UTF-8 or too long, as faults."""
    number = position = 0
    try:
        while raw := file.readline(LONGEST_LINE):
            number += 1
            position += len(raw)
            if len(raw) == LONGEST_LINE and not raw.endswith(b"\n"):
                while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                    position += len(rest)
                yield number, Fault(number, f"longer than {LONGEST_LINE} bytes")
                continue
            try:
                yield number, raw.decode()
            except UnicodeDecodeError as error:
                byte = raw[error.start]
                yield number, Fault(number, f"byte {error.start + 1} (0x{byte:02x}) is not UTF-8")
            if number % READ_EVERY == 0:
                read(file.fileobj.tell() if isinstance(file, gzip.GzipFile) else position)
    except DAMAGED as error:
        yield number + 1, Fault(number + 1, f"from here on the file cannot be unpacked ({error})")


def _json_lines(file: IO[bytes], read: Read) -> Iterator[Line | Fault]:
    for number, text in _decoded(file, read):
        if isinstance(text, Fault):
            yield text
        elif text.strip():
            yield _json_line(number, text)


def _json_line(number: int, text: str) -> Line | Fault:
    try:
        fields = json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        return Fault(number, f"not JSON ({error})" if text.endswith("\n") else f"cut off ({error})")
    if not isinstance(fields, dict):
        return Fault(number, "not a JSON object")
    if "problem" in fields and "gate" in fields:
        return Line(number, {}, record=text)
    if "hyperparameters" not in fields:
        return Line(number, nested(fields))
    unknown = sorted(set(fields) - {*FIELDS, "hyperparameters", "schema"})
    if unknown:
        return Fault(number, f"unknown field {unknown[0]!r}: hyperparameters belong into `hyperparameters`")
    return Line(number, fields)


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a line with its hyperparameters apart: all that has no other meaning."""
    found = {name: value for name, value in fields.items() if name in (*FIELDS, "schema")}
    return found | {"hyperparameters": {name: fields[name] for name in fields if name not in found}}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it names {max(names, key=names.count)!r} twice")
    return fields


def _refuse(text: str) -> float:
    raise ValueError(f"it holds {text}, which is no number")


def _csv(file: IO[bytes], read: Read) -> Iterator[Line | Fault]:
    lines = _decoded(file, read)
    header: list[str] = []
    for number, text in lines:
        if isinstance(text, Fault):
            yield text
            continue
        try:
            cells = next(csv.reader([text]), [])
        except csv.Error as error:  # lines that end in \r alone, a field of 131,072 characters
            yield Fault(number, f"not CSV with line ends of \\n or \\r\\n ({error})")
            continue
        if text.count('"') % 2:
            yield Fault(number, "a quoted field goes on after the line")
        elif not header and not text.strip():
            continue
        elif not header:
            header = [cell.strip() for cell in cells]
            _check_header(header)
        elif not cells:
            continue
        elif not text.endswith("\n"):
            yield Fault(number, "the file ends within this line: if it is complete, end it with a line end")
        elif len(cells) != len(header):
            yield Fault(number, f"{len(cells)} fields, where the header has {len(header)}")
        else:
            yield _csv_line(number, header, cells)


def _check_header(header: list[str]) -> None:
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise BadFile(f"The header of the CSV file names {twice[0]!r} twice: give each column its own name.")
    if "" in header:
        raise BadFile(
            f"Column {header.index('') + 1} of the CSV file has no name in the header, like the index that "
            "pandas writes unless it is told `to_csv(index=False)`: name the column, or leave it out."
        )
    check_columns("The first line of the CSV file must be its header", header)


def check_columns(what: str, names: list[str]) -> None:
    """Raise BadFile for a table without the columns that each measurement needs."""
    if "implementation" in names and "milliseconds" in names:
        return
    parted = next((sign for sign in ";\t|" if len(names) == 1 and sign in names[0]), None)
    hint = "" if parted is None else f" Its fields are parted by {parted!r}: part them by commas."
    raise BadFile(
        f"{what} with {', '.join(FIELDS)} and the hyperparameters; it has {', '.join(names)[:200]}.{hint}"
    )


def _csv_line(number: int, header: list[str], cells: list[str]) -> Line:
    fields: dict[str, Any] = nested(dict(zip(header, cells, strict=True)))
    values = {name: cell if cell.strip() else None for name, cell in fields["hyperparameters"].items()}
    return Line(number, fields | {"hyperparameters": values}, text=True)
