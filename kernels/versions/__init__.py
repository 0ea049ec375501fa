"""Versions of implementations, as two hashes: measurements hold for as long as these stay.

`kernel` covers what is computed: device code, launch shapes, schedules, torch's operations. `host` covers the
way it is reached: modules, launching, autograd. Both are of the definitions that `build` reaches, and of what
they do; see canonical.py for what does not count. A version is both, as "kernel.host"; those of earlier days
are 12 digits of a hash of files. aliases.json says which earlier version does the same as a later one.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from .aliases import chain, equivalents
from .digests import Digest, Digests

__all__ = ["Versions", "equivalents", "holds", "kernel_part", "standing_for"]

DIGITS = 12
DEVICE_REGIMES = ("graph", "device")  # of times in which the host's way has no share


class Versions:
    """The versions of implementations below a folder, as its files are when they are first asked for."""

    def __init__(self, root: Path) -> None:
        self._digests = Digests(root)
        self._lock = Lock()

    def of(self, file: Path) -> str:
        """The version of a file's implementation. Raises SyntaxError, ValueError, OSError for bad sources."""
        digest = self._digest(file, "build")
        if digest is None:
            raise ValueError("its build is no definition of this folder: define build(problem)")
        return f"{digest.kernel[:DIGITS]}.{digest.host[:DIGITS]}"

    def of_work(self, file: Path) -> str:
        """Hash of what counts the work of a file's implementation: its own `work`, or else its operator."""
        digest = self._digest(file, "work") or self._digest(file.with_name("__init__.py"), "OPERATOR")
        return "" if digest is None else digest.kernel[:DIGITS]

    def _digest(self, file: Path, name: str) -> Digest | None:
        with self._lock, _without_collecting():
            return self._digests.of(file, name)

    def release(self) -> None:
        """Forget the files' trees, which take memory, and keep the digests."""
        with self._lock:
            self._digests.release()


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Python's garbage collector put off: it would walk all of torch again and again while trees grow."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def holds(
    operator: str, implementation: str, recorded: str, now: str | None, regime: str | None = None
) -> bool:
    """Whether times of a recorded version are those of the version `now`, in a regime (None: launched).

    A change of the host's part leaves the times of graphs and of the device as they were.
    """
    versions = chain(operator, implementation, recorded)
    if now is None:
        return False
    if regime in DEVICE_REGIMES:
        return kernel_part(now) in map(kernel_part, versions)
    return now in versions


def standing_for(operator: str, implementation: str, recorded: str, now: str | None) -> str:
    """The version `now` where a recorded one does the same; else the recorded one."""
    return now if now is not None and holds(operator, implementation, recorded, now) else recorded


def kernel_part(version: str) -> str:
    """The part of a version that says what is computed; one of earlier days as it is."""
    return version.partition(".")[0]
