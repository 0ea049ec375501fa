"""Python's search for cycles of dead objects, kept away from what makes many objects and no cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

SELDOM = 1_000_000  # objects more than before, after which there is a search all the same

_changing = Lock()


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Search seldom for the length of a block.

    By default there is a search after 700 new objects, and some go through all that are alive: a batch of
    answers met some dozens, of up to 0.2 s beside the records of a database. The process's thresholds are
    changed, and put back: collecting is never turned on or off, which may be somebody else's decision. Where
    blocks of several threads overlap, the first of them alone changes anything.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < SELDOM or not _changing.acquire(blocking=False):
        yield
        return
    try:
        gc.set_threshold(SELDOM, *before[1:])
        yield
    finally:
        gc.set_threshold(*before)
        _changing.release()
