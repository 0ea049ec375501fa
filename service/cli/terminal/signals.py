"""Signals that end a process which answers others, while it has nothing in flight."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """A block that SIGTERM and SIGINT end at once, with the process, until a server takes them over.

    The server raises them again at its own end. Of the first process of a container the kernel drops a
    SIGTERM that nobody handles.
    """
    before = {
        one: signal.signal(one, lambda number, _: end_at_once(number))
        for one in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def end_at_once(number: int) -> NoReturn:
    """End of a process that has nothing in flight, by a signal.

    Its status is 130 for SIGINT, as that of every command, and else the signal, or 0 in the first process of
    a container.
    """
    if number == signal.SIGINT:
        os._exit(128 + number)
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(0)
