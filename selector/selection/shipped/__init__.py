"""Measurements that come with this package, to which a user's own add.

They are a database like any other, packed into one file; `python -m scripts.release.ship` extends it by
the sweeps of a release. It is unpacked into the user's cache folder when it is first needed, or where that
cannot be written into a temporary folder of the user.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import stat
import tempfile
import time
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from kernel_selector.kernels.contract.errors import shorten

from ...errors import InvalidRequest

if TYPE_CHECKING:
    from kernel_selector.db import Database

VARIABLE = "SELECTOR_SHIPPED"
ON, OFF = {"", "on", "1", "true", "yes"}, {"off", "0", "false", "no"}
PACKED = Path(__file__).with_name("measurements.db.xz")
_OPENING = Lock()  # threads that ask at once wait for the first
LEFT_S = 3600.0  # after which what is half unpacked was left by a process that was killed
CPU = "amd-epyc"  # the key of the processor whose measurements ship


def are_wanted(given: bool | None = None) -> bool:
    """Whether questions are answered from these measurements too: as given, else by SELECTOR_SHIPPED.

    Raises InvalidRequest for a value of the variable that says neither.
    """
    if given is not None:
        return given
    text = os.environ.get(VARIABLE, "")
    if text.lower() not in ON | OFF:
        raise InvalidRequest(f"{VARIABLE}={shorten(text)}: expected on or off.")
    return text.lower() in ON


def unpacked() -> Path:
    """The database as a file of today's revision, unpacked once for it. Raises OSError and DatabaseError.

    Warns where it is not in the user's cache folder.
    """
    from kernel_selector.db.engine.location import cache_folder

    packed, folder = PACKED.read_bytes(), cache_folder()
    try:
        return _unpacked_in(folder, packed)
    except OSError as error:
        instead = _temporary_folder()
        if instead is None:
            raise
        path = _unpacked_in(instead, packed)
        warnings.warn(
            f"The measurements that come with this package cannot be unpacked into {folder} "
            f"({error.strerror or error}), and are in {instead} instead. Set XDG_CACHE_HOME to a folder that "
            "can be written and stays.",
            stacklevel=2,
        )
        return path


def _temporary_folder() -> Path | None:
    """A temporary folder that this user alone can write; None where another one has made it."""
    folder = Path(tempfile.gettempdir()) / f"kernel-selector-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return folder if is_own else None


def _unpacked_in(folder: Path, packed: bytes) -> Path:
    """The database in a folder, unpacked unless it is there. Raises OSError and DatabaseError."""
    from kernel_selector.db import Database
    from kernel_selector.db.engine.migrations import HEAD

    path = folder / f"shipped-{hashlib.sha256(packed).hexdigest()[:16]}-{HEAD}.sqlite"
    if not path.is_file():
        content = lzma.decompress(packed)
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob("shipped-*.part*"):
            with suppress(OSError):  # it was whole meanwhile, or is another user's in a shared cache
                if left.stat().st_mtime < time.time() - LEFT_S:
                    left.unlink()
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix="shipped-", suffix=".part", delete=False
        ) as part:
            part.write(content)
        Database.open(part.name, create=True).close()  # it was packed at the revision of its time
        os.replace(part.name, path)  # other processes see all of the file or none
    return path


def opened() -> Database:
    """The database, opened once in a process. Raises OSError and DatabaseError."""
    with _OPENING:
        return _opened()


@cache
def _opened() -> Database:
    from kernel_selector.db import Database

    return Database.open(unpacked())


@cache
def problem_keys(operator: str) -> frozenset[str]:
    """Keys of the problems of an operator that were measured, on any device. Raises as `opened`."""
    from kernel_selector.db import contested

    with opened().read() as connection:
        return frozenset(contested.problem_keys(connection, operator=operator))
