"""HTTP of one connection within bounds: of its head, its queue of requests, and the time for either end.

uvicorn's parser keeps whatever comes before the first byte of a body, starts no clock until a request is
whole, and queues all requests that lie in what it has read. Clients without a token could hold gigabytes by
that, and connections for ever.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import TimerHandle
from typing import Any

from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .logs import Seldom

MOST_HEAD_BYTES = 2**16  # of a request's line, headers and trailers together
MOST_HEADERS = 128  # and trailers: each costs some microseconds, however short it is
READ_BYTES = 2**18  # that asyncio reads at once: parts of a body may lie behind a head
MOST_QUEUED = 8  # requests that wait on one connection for the answer before
MOST_CONNECTIONS = 1000  # of a process
REFUSED_S = 1.0  # until what is no HTTP is answered: who sends it sends the next as soon as it may
HEAD_S = 20.0  # from the first byte, or the connection, until a head is whole
UNREAD_S = 30.0  # that an answer may wait for its reader

LOGGER = logging.getLogger("uvicorn.error.connections")
LOGGER.setLevel(logging.WARNING)  # uvicorn traces each connection at the level that is not set
LOGGER.addFilter(Seldom())


class TooMuch(HttpParserError):
    """Head or queue beyond its bound; the parser's own errors are answered alike."""


class BoundedProtocol(HttpToolsProtocol):
    """Connection that is refused in a while beyond its bounds, and closed where its client stands still."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = LOGGER
        self._head_bytes = self._headers = self._unparsed_bytes = 0
        self._head_timer: TimerHandle | None = None
        self._unread_timer: TimerHandle | None = None
        self._refused_timer: TimerHandle | None = None
        self._cycles: list[RequestResponseCycle] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first head; one connection too many is closed at once."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self._head_timer = self.loop.call_later(HEAD_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all clocks."""
        self._stop("_head_timer", "_unread_timer", "_refused_timer")
        for one in self._cycles:  # uvicorn tells the last one alone: the others would go on writing
            one.disconnected = not one.response_complete
            one.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless a head has grown beyond its bound without a whole header in it."""
        if self._refused_timer is not None:  # an answer that has been sent meanwhile lets reading go on
            self.transport.pause_reading()
            return
        if self._head_timer is not None:
            self._unparsed_bytes += len(data)
            if self._unparsed_bytes > MOST_HEAD_BYTES + READ_BYTES:
                self.send_400_response("Request head too large.")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Count the bytes of another head, and start its clock."""
        super().on_message_begin()
        self._head_bytes = self._headers = self._unparsed_bytes = 0
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self.transport.abort)

    def on_url(self, url: bytes) -> None:
        """Count a part of the request's line."""
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, or a trailer behind a body, which is dropped: a proxy has not looked at it."""
        self._headers += 1
        self._count(name, value)
        if self._head_timer is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop the head's clock, and queue the request where it has to wait."""
        self._stop("_head_timer")
        if len(self.pipeline) >= MOST_QUEUED:
            raise TooMuch(f"more than {MOST_QUEUED} requests wait on one connection")
        super().on_headers_complete()
        self._cycles = [one for one in self._cycles if not one.response_complete]
        if self.cycle is not None:
            self._cycles.append(self.cycle)

    def send_400_response(self, msg: str) -> None:
        """Answer in a while and close; read nothing more meanwhile, and work on nothing that waits."""
        self._stop("_head_timer")
        self.pipeline.clear()
        if self.transport.is_closing():
            return
        self.transport.pause_reading()
        self._refused_timer = self.loop.call_later(REFUSED_S, super().send_400_response, msg)

    def pause_writing(self) -> None:
        """Start the clock of an answer that nobody reads."""
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop it."""
        self._stop("_unread_timer")
        super().resume_writing()

    def _count(self, *parts: bytes) -> None:
        self._head_bytes += sum(map(len, parts))
        if self._head_bytes > MOST_HEAD_BYTES or self._headers > MOST_HEADERS:
            raise TooMuch(f"a head of more than {MOST_HEAD_BYTES} bytes or {MOST_HEADERS} headers")

    def _stop(self, *timers: str) -> None:
        for name in timers:
            timer: TimerHandle | None = getattr(self, name)
            if timer is not None:
                timer.cancel()
                setattr(self, name, None)
