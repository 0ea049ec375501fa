"""Connections to PostgreSQL that notice a server which is silent: stopped, frozen, or cut off without a word.

Such a server refuses nothing and ends nothing, so that no error ever comes, and its own timeouts stand still
as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from functools import cache, partial
from typing import Any, TypeVar

import psycopg
from psycopg.errors import ConnectionTimeout

SILENCE_S = 2.0  # without a byte, after which it is asked for a connection; twice as long after each
LONGEST_SILENCE_S = 30.0
REST_S = 5.0  # for which a silent server is not asked again
SILENT = "the server is silent: it takes connections and answers none"

Result = TypeVar("Result")


class _Silence(Exception):
    """A server that neither answers nor takes another connection."""


class Server:
    """A server that is or is not silent. While it is one caller waits for it, and no other.

    Safe to share among threads.
    """

    def __init__(self) -> None:
        self._rests_until = 0.0  # since it was silent; 0: it was not

    def connect(self, *arguments: Any, **parameters: Any) -> Watched:
        """A new connection, given what psycopg takes. Raises OperationalError."""
        connection: Watched = self._made(partial(Watched.connect, *arguments, **parameters))
        again = partial(psycopg.connect, *arguments, **parameters)
        connection.require_answer = partial(self._require_answer, again)
        return connection

    def _require_answer(self, connect: Callable[[], Any]) -> None:
        """Raise _Silence unless the server takes a connection, or says why it does not."""
        try:
            self._made(connect).close()
        except ConnectionTimeout as error:
            raise _Silence from error
        except psycopg.Error:  # it said something
            pass

    def _made(self, connect: Callable[[], Any]) -> Any:
        now = time.monotonic()
        if now < self._rests_until:
            raise ConnectionTimeout(SILENT)
        if self._rests_until:
            self._rests_until = now + REST_S  # of the others, while this one tries
        try:
            made = connect()
        except ConnectionTimeout:
            self._rests_until = time.monotonic() + REST_S
            raise
        except psycopg.Error:
            self._rests_until = 0.0
            raise
        self._rests_until = 0.0
        return made


class Watched(psycopg.Connection[Any]):
    """Connection that is closed when its server is silent; a slow statement of one that is not goes on."""

    require_answer: Callable[[], None]

    def wait(self, gen: Any, *given: Any, **more: Any) -> Any:
        """Result of what psycopg waits for. Raises OperationalError for a silent server."""
        if not hasattr(self, "require_answer"):  # while it is made, which has a time limit of its own
            return super().wait(gen, *given, **more)
        try:
            return super().wait(_heard(gen, self.require_answer), *given, **more)
        except _Silence as error:
            self.close()
            raise psycopg.OperationalError(SILENT) from error


@cache
def server(address: str) -> Server:
    """The server at an address, the same for all who ask in this process."""
    del address
    return Server()


def _heard(
    waits: Generator[Any, Any, Result], require_answer: Callable[[], None]
) -> Generator[Any, Any, Result]:
    """What psycopg waits for step by step, with a look whether the server is alive after each silence."""
    heard, patience_s = time.monotonic(), SILENCE_S
    try:
        wanted = next(waits)
        while True:
            ready = yield wanted
            now = time.monotonic()
            if ready:
                heard, patience_s = now, SILENCE_S
            elif now - heard > patience_s:
                require_answer()
                heard, patience_s = time.monotonic(), min(2 * patience_s, LONGEST_SILENCE_S)
            wanted = waits.send(ready)
    except StopIteration as end:
        result: Result = end.value
        return result
