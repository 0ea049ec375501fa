"""Pure ASGI middleware: a limit on bodies, HEAD, and an id and a log line for each request.

Starlette's BaseHTTPMiddleware would double the time of a request.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access import own_path, refuse_ended
from .logs import LOGGER
from .problem_details import BODY_TOO_LARGE, BODY_TOO_SLOW, ENDING, problem

PART_OF_BODY_S, WHOLE_BODY_S = 30.0, 300.0  # until more of a body comes, and until all of it has
SLOW = f"The body stood still for {PART_OF_BODY_S:g} s, or took {WHOLE_BODY_S:g} s: send it faster, or less."
BEGIN_BYTES = 2**16  # of a body of lines, by which it is known to be none
LEAST_RECORD_BYTES = 100  # no record has fewer: its fields' names alone have more
REFUSED_S = 1.0  # after a large body that was of no use, before the next one of its token is looked at
LONGEST_PATH = 200  # characters of it in a line of the log
MOST_DIGITS = 18  # of a length that is worth reading
CLIENT_GONE = 499  # in the log and the counts, as nginx has it: nobody is there to be answered
ENDED = (
    "The service ended before this was answered, done or not. Ask again, for a job with its Idempotency-Key."
)
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class BodyLimit:
    """Answers 413 when a body is longer than `max_bytes`; otherwise hands it on in one piece.

    `larger` has other limits for some paths. Both a declared length and what really arrives are checked: a
    chunked body declares nothing. A token that ended while the body came is a 401. Bodies that are longer
    than `max_bytes` are worked on one at a time for each token, and in a while after one that was refused. Of
    paths that take `lines` of records a body whose begin is none of them is read no further.
    """

    def __init__(
        self, app: ASGIApp, max_bytes: int, larger: Mapping[str, int], lines: Collection[str] = ()
    ) -> None:
        self.app = app
        self.lines = lines
        self.max_bytes = max_bytes
        self.larger = larger
        # by token: few
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._not_before: defaultdict[str, float] = defaultdict(float)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        most = self.larger.get(own_path(scope), self.max_bytes)
        declared = Headers(scope=scope).get("content-length", "")
        # by length first: int() refuses thousands of digits
        if declared.isdecimal() and (len(declared) > MOST_DIGITS or int(declared) > most):
            await _refuse(most, scope, receive, send)
            return
        chunks: list[bytes] = []
        size, more, end = 0, True, time.monotonic() + WHOLE_BODY_S
        begun = cut = False
        while more:
            try:
                async with asyncio.timeout(min(PART_OF_BODY_S, end - time.monotonic())):
                    message = await receive()
            except TimeoutError:
                late = {"connection": "close"}
                await problem(BODY_TOO_SLOW, SLOW, scope=scope, headers=late)(scope, receive, send)
                return
            if message["type"] == "http.disconnect":
                return
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > most:
                await _refuse(most, scope, receive, send)
                return
            more = message.get("more_body", False)
            if more and not begun and size >= BEGIN_BYTES and own_path(scope) in self.lines:
                begun = True
                if cut := is_hopeless(b"".join(chunks)):
                    break
        still_granted = scope.pop("still_granted", None)  # which refers to the scope
        if size and still_granted is not None and not await still_granted():
            await refuse_ended(scope, receive, send)
            return
        body = b"".join(chunks)
        del chunks
        if size <= self.max_bytes and not cut:
            await self.app(scope, _replay(body, receive), send)
            return
        author = scope.get("author", "")
        async with self._turns[author]:
            await asyncio.sleep(max(0.0, self._not_before[author] - time.monotonic()))
            if await _is_refused(self.app, scope, _replay(body, receive), send, last=cut):
                self._not_before[author] = time.monotonic() + REFUSED_S


def is_hopeless(begin: bytes) -> bool:
    """Whether lines of the begin of a body are so short that it is refused whatever follows."""
    return len([line for line in begin.split(b"\n") if line.strip()]) > len(begin) // LEAST_RECORD_BYTES


async def _is_refused(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, *, last: bool = False
) -> bool:
    """Let the app answer; whether that said that the request is at fault. `last`: of its connection."""
    refused = False

    async def noted(message: Message) -> None:
        nonlocal refused
        if message["type"] == "http.response.start":
            refused = 400 <= message["status"] < 500
            if last:  # what is left of the body is not read
                MutableHeaders(scope=message)["connection"] = "close"
        await send(message)

    await app(scope, receive, noted)
    return refused


class Head:
    """Answers HEAD as GET, needing the same scope, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        # a copy: the server looks at the method of its own to know that no body comes
        asked = {**scope, "method": "GET"}
        try:
            await self.app(asked, receive, without_body)
        finally:
            scope.update(asked, method="HEAD")  # for the log: the route, and who asked


class RequestLog:
    """Gives each request an id (the client's `X-Request-ID` if it is plain), counts it, and logs its end."""

    def __init__(self, app: ASGIApp, enabled: bool) -> None:
        self.app = app
        self.enabled = enabled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope["request_id"] = request_id
        status, started = CLIENT_GONE, time.perf_counter()

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self.app(scope, receive, tagged)
        except asyncio.CancelledError:  # by the server, which ends and has given enough time
            if status == CLIENT_GONE:
                again = {"retry-after": "1", "connection": "close"}
                await problem(ENDING, ENDED, scope=scope, headers=again)(scope, receive, tagged)
        except BaseException:
            status = 500 if status == CLIENT_GONE else status
            raise
        finally:
            spent_s = time.perf_counter() - started
            scope["app"].state.metrics.request(scope, status, spent_s)
            if self.enabled:
                _log(scope, status, spent_s * 1e3)


def _log(scope: Scope, status: int, spent_ms: float) -> None:
    fields = {
        "method": scope["method"],
        "path": scope["path"][:LONGEST_PATH],
        "status": status,
        "ms": round(spent_ms, 2),
        "request_id": scope["request_id"],
        "author": scope.get("author"),
    }
    # %a: a path with a line break must stay on its line
    LOGGER.info("%s %a %d %.2f ms %s", *list(fields.values())[:5], extra={"request": fields})


async def _refuse(most: int, scope: Scope, receive: Receive, send: Send) -> None:
    detail = (
        f"The body has more than {most} bytes. Send less at once, or start the service with a larger limit: "
        "`selector config` lists them."
    )
    # what is left of the body is not read, so the connection cannot be used again
    answer = problem(BODY_TOO_LARGE, detail, scope=scope, headers={"connection": "close"})
    await answer(scope, receive, send)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body, and then what the server says (the client went away)."""
    waiting = [body]

    async def again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again
