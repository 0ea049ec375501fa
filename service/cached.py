"""Cached database reads that many requests share, refreshed when due."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock, Thread
from typing import Generic, TypeVar

from kernel_selector.kernels.contract import SelectorError

BACK_OFF = 9  # times as long as a reading took there is no other: it costs a tenth of the time
UNKNOWN = object()  # whether what is read has changed

Value = TypeVar("Value")


class Cached(Generic[Value]):
    """Cached result of `read`, safe to share among threads: one thread reads, and the others take the old
    value or wait for the first.

    Later errors of the database change nothing; the selector's status has them. steady: how long a reading
    takes does not count, and what hinders the first one is said for `least_age_s` without another try.
    patience_s: seconds after which the old value is taken while the reading goes on, None for any time.
    """

    def __init__(
        self,
        read: Callable[[], Value],
        *,
        steady: bool = False,
        patience_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._read = read
        self._steady = steady
        self._patience_s = patience_s
        self._lock = Lock()
        self._value: Value
        self._ever = False  # whether there is a value
        self._state: object = UNKNOWN  # at the last reading
        self._trouble: SelectorError | None = None  # of a first reading that failed
        self._due = 0.0

    def is_due(self, state: object = UNKNOWN) -> bool:
        """Whether `refresh` has something to do: it may wait for the database.

        state: what changes when the value may have changed, where that is known.
        """
        changed = state is UNKNOWN or state != self._state
        return not self._ever or (changed and time.monotonic() >= self._due)

    def refresh(self, state: object = UNKNOWN, *, least_age_s: float = 0.0) -> None:
        """Read if it is due, and not again for `least_age_s`.

        Raises the errors of the database when it could never be read.
        """
        if not self.is_due(state) or not self._lock.acquire(blocking=not self._ever):
            return
        patience_s = self._patience_s() if self._ever else None
        if patience_s is None:
            self._take(state, least_age_s)
            return
        reading = Thread(target=self._take, args=(state, least_age_s), name="reading", daemon=True)
        reading.start()
        reading.join(patience_s)

    def value(self, state: object = UNKNOWN, *, least_age_s: float = 0.0) -> Value:
        """Current value, at most `least_age_s` old. Raises as `refresh`."""
        self.refresh(state, least_age_s=least_age_s)
        return self._value

    def latest(self, otherwise: Value) -> Value:
        """Last value, however old; `otherwise` before the first read."""
        return self._value if self._ever else otherwise

    def _take(self, state: object, least_age_s: float) -> None:
        """Read in the place of who holds the lock."""
        try:
            if self.is_due(state):  # another thread may have read while this one waited
                self._look(state, least_age_s)
        finally:
            self._lock.release()

    def _look(self, state: object, least_age_s: float) -> None:
        if self._trouble is not None and time.monotonic() < self._due:
            raise self._trouble
        started = time.monotonic()
        try:
            self._value = self._read()
            self._state, self._ever, self._trouble = state, True, None
        except SelectorError as error:
            if not self._ever:
                self._trouble = error if self._steady else None
                raise
        finally:
            ended = time.monotonic()
            rest_s = 0.0 if self._steady else BACK_OFF * (ended - started)
            self._due = ended + max(least_age_s, rest_s)
