"""Large bodies: read no further than they are of use, and one at a time for each token."""

from __future__ import annotations

import asyncio
import time

import pytest

from kernel_selector.service import middleware
from kernel_selector.service.middleware import BodyLimit
from kernel_selector.service.openapi.example_record import LINE

PATH, PART = "/v1/measurements", 2**16
RECORDS = (LINE.encode() + b"\n") * (2**18 // len(LINE))


class App:
    """Notes the bodies that it gets, how many of them at once, and answers each."""

    def __init__(self, status=422):
        self.status, self.bodies, self.busy, self.most = status, [], 0, 0

    async def __call__(self, _, receive, send):
        self.busy += 1
        self.most = max(self.most, self.busy)
        self.bodies.append((await receive())["body"])
        await asyncio.sleep(0.02)
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        self.busy -= 1


def limited(app):
    return BodyLimit(app, 2**15, {PATH: 2**24, "/other": 2**24}, lines={PATH})


async def sent(limit, body, *, path=PATH, author="one"):
    """Parts of the body that were read, and the first message of the answer."""
    parts = [body[start : start + PART] for start in range(0, len(body), PART)]
    read, answer = [], []

    async def receive():
        read.append(parts[len(read)])
        return {"type": "http.request", "body": read[-1], "more_body": len(read) < len(parts)}

    async def send(message):
        answer.append(message)

    scope = {"type": "http", "path": path, "headers": [], "author": author}
    await limit(scope, receive, send)
    return len(read), answer[0]


@pytest.mark.parametrize("lines", [b"{}\n", b"x\n", b'{"schema": 1}\r\n', b"\n\n{}\n"])
def test_lines_too_short_for_records_are_read_no_further(lines):
    app = App()
    read, answer = asyncio.run(sent(limited(app), lines * (2**22 // len(lines))))
    assert (read, len(app.bodies[0])) == (1, PART)
    assert (b"connection", b"close") in answer["headers"]


@pytest.mark.parametrize(
    ("body", "path"),
    [(RECORDS, PATH), (b"\n" * 2**17 + RECORDS, PATH), (b"{}\n" * 2**17, "/other")],
    ids=["records", "empty lines", "another path"],
)
def test_what_may_be_records_is_read_to_its_end(body, path):
    app = App(200)
    _, answer = asyncio.run(sent(limited(app), body, path=path))
    assert app.bodies == [body]
    assert answer["headers"] == []


def test_one_at_a_time_for_each_token_and_slowly_after_one_that_was_refused(monkeypatch):
    monkeypatch.setattr(middleware, "REFUSED_S", 0.2)

    async def several(status, authors):
        app = App(status)
        limit, started = limited(app), time.monotonic()
        await asyncio.gather(*(sent(limit, RECORDS, author=one) for one in authors))
        return app.most, time.monotonic() - started

    assert asyncio.run(several(200, "aaa"))[0] == 1
    assert asyncio.run(several(200, "abc"))[0] == 3
    assert asyncio.run(several(422, "aaa"))[1] > 0.4
