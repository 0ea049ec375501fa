"""A reading of the database that many ask for, taken again when it is time."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from kernel_selector.kernels.contract import SelectorError

BACK_OFF = 9  # times as long as a reading took there is no other: it costs a tenth of the time
NOTHING = object()

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """What `read` gave last. Safe to share among threads: one reads, the others take what is there."""

    def __init__(self, read: Callable[[], Value]) -> None:
        self._read = read
        self._lock = Lock()
        self._value: Value
        self._state: object = NOTHING
        self._due = 0.0

    def value(self, state: object, least_age_s: float = 0.0) -> Value:
        """As of now, or a moment ago; read again where `state` is not what it was at the last reading.

        least_age_s: after a reading, how long there is no other. Raises the errors of the database when it
        could never be read; later ones change nothing, and the selector's status has the trouble.
        """
        first = self._state is NOTHING
        due = first or (state != self._state and time.monotonic() >= self._due)
        if due and self._lock.acquire(blocking=first):
            started = time.monotonic()
            try:
                # another thread may have read while this one waited for it
                if not first or self._state is NOTHING:
                    self._value = self._read()
                    self._state = state
            except SelectorError:
                if first:
                    raise
            finally:
                ended = time.monotonic()
                self._due = ended + max(least_age_s, BACK_OFF * (ended - started))
                self._lock.release()
        return self._value
