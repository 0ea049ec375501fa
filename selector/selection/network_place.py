"""Detection of databases on network file systems, where SQLite's locks cannot be relied on."""

from __future__ import annotations

import os
from pathlib import Path

KINDS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "lustre", "beegfs", "gpfs", "ceph", "glusterfs")
MOUNTS = Path("/proc/mounts")


def network_warning(location: str, mounts: Path = MOUNTS) -> str | None:
    """Warning about an SQLite file on a network file system, or None; also where nobody can tell.

    location: as a `Database` gives it: a path, or a URL, which is no file.
    """
    if "://" in location or not mounts.exists():
        return None
    path = os.path.realpath(location)
    kind = _kind(path, mounts.read_text(errors="replace"))
    if kind not in KINDS and not kind.startswith("fuse."):
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
