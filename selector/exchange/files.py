"""Output files, written atomically and never over a database or the input."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import InvalidRequest


def printable(name: str) -> str:
    """A file's name for the journal: what no database holds, and what would begin a line, is spelt out."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in name)


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Temporary path beside `path`, renamed to `path` at the end of the block.

    After an error what was there before stays. Raises as `require_free`, and InvalidRequest where nothing can
    be written.
    """
    require_free(path)
    special = path.exists() and not path.is_file()  # a pipe, /dev/stdout
    target = path if special else path.resolve()
    part = path if special else target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        yield part
        if not special:
            os.replace(part, target)
    except BrokenPipeError:
        raise  # the reader of a pipe has left: no fault of the place
    except OSError as error:
        raise refused(path, error) from error
    finally:
        if not special:
            with suppress(OSError):
                part.unlink()


def require_free(path: Path, reading: Path | None = None) -> None:
    """Raise InvalidRequest for a path of a database or of the input file, which writing would destroy."""
    from kernel_selector.db.engine.sqlite import is_database

    if is_database(path):
        raise InvalidRequest(f"{path} is an SQLite database, which would be lost: name another file.")
    if reading is not None and path.exists() and reading.exists() and path.samefile(reading):
        raise InvalidRequest(f"{path} is the file that is read, and would be lost: name another file.")


def refused(path: Path, error: OSError) -> InvalidRequest:
    """Error for a file that cannot be written."""
    return InvalidRequest(f"{path} cannot be written: {error.strerror or error}.")
