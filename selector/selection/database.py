"""The argument `database`: checked, as a command's option, and whether its file lies on a network."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from kernel_selector.kernels.contract.errors import shorten

from ..errors import InvalidRequest

LONGEST_NAME = 255  # characters of a file's name, on the systems that there are
# file systems on which SQLite's locks cannot be relied on
NETWORK_KINDS = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "lustre",
    "beegfs",
    "gpfs",
    "ceph",
    "glusterfs",
)
MOUNTS = Path("/proc/mounts")


def require_database(value: object) -> None:
    """Raises InvalidRequest for what is neither None, a path, a URL nor an open Database."""
    if value is None or isinstance(value, os.PathLike) or (isinstance(value, str) and _is_place(value)):
        return
    if not isinstance(value, str):
        from kernel_selector.db import Database

        if isinstance(value, Database):
            return
    raise InvalidRequest(
        f"database={shorten(value)}: expected a file path, a URL such as postgresql://user@host/name, "
        "an open Database, or nothing for the default one."
    )


def _is_place(text: str) -> bool:
    return bool(text.strip()) and max(map(len, text.split("/"))) <= LONGEST_NAME


def named_database(value: str | None = None) -> str | None:
    """Database that an option names, else the environment; None for the user's own, which may be missing."""
    return value if value is not None else os.environ.get("SELECTOR_DATABASE_URL") or None


def same_database(value: object) -> str:
    """The option by which a command is about the same database; empty for the default one."""
    return f" --database {shlex.quote(str(value))}" if isinstance(value, str | os.PathLike) else ""


def network_warning(location: str, mounts: Path = MOUNTS) -> str | None:
    """Warning about an SQLite file on a network file system, or None; also where nobody can tell.

    location: as a `Database` gives it: a path, or a URL, which is no file.
    """
    if "://" in location or not mounts.exists():
        return None
    path = os.path.realpath(location)
    kind = _kind(path, mounts.read_text(errors="replace"))
    if kind not in NETWORK_KINDS and not kind.startswith("fuse."):
        return None
    return (
        f"{location} is on a network file system ({kind}), where SQLite's locks may not hold: with several "
        "machines give each a file of its own, or use PostgreSQL."
    )


def _kind(path: str, mounts: str) -> str:
    """The file system's kind: of the longest mount point that leads to the path."""
    longest, found = -1, ""
    for line in mounts.splitlines():
        place, kind = (*line.split(" "), "", "", "")[1:3]
        place = place.replace("\\040", " ")
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= longest:
            longest, found = len(place), kind
    return found
