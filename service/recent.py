"""Bounded memory of what was seen last."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Values by key, the last `most` that were put in. Safe to share among threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def put(self, key: Key, value: Value) -> bool:
        """Keep a value in place of what the key had, and say whether the key is new."""
        with self._lock:
            new = key not in self._values
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._most:
                self._values.popitem(last=False)
            return new

    def get(self, key: Key) -> Value | None:
        """Value of a key, or None."""
        with self._lock:
            return self._values.get(key)
