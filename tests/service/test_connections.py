"""Clients that give too much, stand still or never read, on a real socket of the loopback interface."""

from __future__ import annotations

import resource
import socket
import struct
import threading
import time

import pytest
import uvicorn

from kernel_selector.service import connections, middleware
from kernel_selector.service.app import create_app
from kernel_selector.service.connections import BoundedProtocol
from kernel_selector.service.settings import Settings
from selector import Selector

ASK = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
LONG = ASK.replace(b"/healthz", b"/openapi.json") + b"\r\n"  # with an answer of hundreds of kilobytes


@pytest.fixture(scope="module")
def port(database_file):
    selector = Selector(database_file)
    configuration = uvicorn.Config(
        create_app(selector, settings=Settings()), http=BoundedProtocol, port=0, log_config=None
    )
    server = uvicorn.Server(configuration)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()
    selector.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(connections, "REFUSED_S", 0.05)


@pytest.fixture
def connect(port):
    opened = []

    def connect():
        opened.append(socket.create_connection(("127.0.0.1", port), timeout=20))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


def answer(connection):
    """All that a server sends until it closes the connection."""
    parts = []
    try:
        while part := connection.recv(2**16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def alive(connect):
    connection = connect()
    connection.sendall(ASK + b"Connection: close\r\n\r\n")
    return b" 200 " in answer(connection).splitlines()[0]


HEADS = {
    "many headers": (ASK, b"X-A: b\r\n" * 1000),
    "one header": (ASK + b"X-A: ", b"a" * 10_000),
    "a long address": (b"GET /", b"a" * 10_000),
    "trailers": (
        b"POST /v1/choices HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n",
        b"X-A: b\r\n" * 1000,
    ),
}


@pytest.mark.parametrize(("begin", "part"), HEADS.values(), ids=HEADS)
def test_a_head_ends_at_its_bound(connect, begin, part):
    connection, sent = connect(), 0
    connection.sendall(begin)
    try:
        while sent < 2**24:
            connection.sendall(part)
            sent += len(part)
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert sent < 2**23  # what lies in buffers on the way
    assert answer(connection)[:12] in (b"", b"HTTP/1.1 400")
    assert alive(connect)


def test_a_head_of_many_short_headers_ends_early(connect):
    connection = connect()
    connection.sendall(ASK + b"X-A: b\r\n" * 200 + b"\r\n")
    assert answer(connection).startswith(b"HTTP/1.1 400")
    connection = connect()
    connection.sendall(ASK + b"X-A: b\r\n" * 100 + b"Connection: close\r\n\r\n")
    assert answer(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("trailer", ["Host: 127.0.0.1", "Content-Type: application/json"])
def test_a_trailer_is_no_header(connect, trailer):
    """It was one where all came at once: a token could stand there, which a proxy in front does not see."""
    headers = ["Host: 127.0.0.1", "Content-Type: application/json", "Connection: close"]
    headers = "\r\n".join(one for one in headers if one != trailer)
    body = b'{"hyperparameters": {"hidden": 64, "batch": 8}}'
    for behind in ("", f"{trailer}\r\n"):
        connection = connect()
        head = (
            f"POST /v1/choices HTTP/1.1\r\n{headers}\r\nTransfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n"
        )
        connection.sendall(head.encode() + body + f"\r\n0\r\n{behind}\r\n".encode())
        assert answer(connection)[9:12] in (b"400", b"401", b"415")


def test_who_sends_what_is_no_http_waits_for_the_answer_and_is_read_no_further(connect, monkeypatch):
    monkeypatch.setattr(connections, "REFUSED_S", 0.5)
    connection, started = connect(), time.monotonic()
    connection.sendall(b"no HTTP\r\n\r\n")
    assert answer(connection).startswith(b"HTTP/1.1 400")
    assert time.monotonic() - started > 0.4


def test_who_goes_away_with_requests_that_wait_leaves_no_error(connect, caplog):
    for _ in range(5):
        connection = connect()
        connection.sendall(LONG * 6)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    assert alive(connect)
    time.sleep(0.2)
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_requests_that_wait_for_answers_which_nobody_reads_take_no_memory(connect, monkeypatch):
    monkeypatch.setattr(connections, "UNREAD_S", 1.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    waiting = [connect() for _ in range(20)]
    for connection in waiting:
        connection.settimeout(0.2)
        try:
            for _ in range(200):
                connection.sendall(LONG * 100)
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            continue
    assert alive(connect)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024  # kilobytes


def test_an_answer_that_nobody_reads_ends_the_connection(connect, monkeypatch):
    monkeypatch.setattr(connections, "UNREAD_S", 0.3)
    connection = connect()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(LONG * 4)
    time.sleep(1.0)
    connection.settimeout(0.1)
    latest = time.monotonic() + 15.0  # on a busy machine the answers that fill the buffers take seconds
    while not ended(connection):
        assert time.monotonic() < latest


def ended(connection):
    """Whether a connection takes nothing more."""
    try:
        connection.sendall(LONG)
    except (BrokenPipeError, ConnectionResetError):
        return True
    except TimeoutError:
        pass
    time.sleep(0.02)
    return False


@pytest.mark.parametrize("given", [b"", b"GET /healthz HTTP/1.1\r\nX-A"], ids=["nothing", "half a head"])
def test_a_client_that_stands_still_is_closed(connect, monkeypatch, given):
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    connection = connect()
    connection.sendall(given)
    assert answer(connection) == b""


def test_a_body_that_stands_still_is_answered_408(connect, monkeypatch):
    monkeypatch.setattr(middleware, "PART_OF_BODY_S", 0.3)
    connection = connect()
    connection.sendall(
        b"POST /v1/choices HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{"
    )
    found = answer(connection)
    assert found.startswith(b"HTTP/1.1 408 ")
    assert b"body-too-slow" in found


def test_one_connection_too_many_is_closed(connect, monkeypatch):
    assert alive(connect)
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 3)
    found = [connect() for _ in range(8)]
    ended = []
    for one in found:
        one.settimeout(1.0)
        try:
            ended.append(one.recv(1))
        except TimeoutError:
            continue
        except ConnectionResetError:
            ended.append(b"")
    assert 0 < len(ended) < len(found)
    assert set(ended) == {b""}


def test_requests_in_a_row_are_answered_in_order(connect):
    connection = connect()
    connection.sendall((ASK + b"\r\n") * 5 + ASK + b"Connection: close\r\n\r\n")
    assert answer(connection).count(b"HTTP/1.1 200 ") == 6


def test_garbage_is_logged_once_in_a_while(connect, caplog, monkeypatch):
    (seldom,) = connections.LOGGER.filters
    monkeypatch.setattr(seldom, "_next", 0.0)
    monkeypatch.setattr(seldom, "_left_out", 0)

    def send(count):
        for _ in range(count):
            connection = connect()
            connection.sendall(b"\0\1garbage\r\n\r\n")
            assert b" 400 " in answer(connection)

    with caplog.at_level("WARNING"):
        send(5)
        monkeypatch.setattr(seldom, "_next", 0.0)
        send(1)
        connections.LOGGER.error("a fault")
    assert caplog.messages == [
        "Invalid HTTP request received.",
        "Invalid HTTP request received. And 4 more such warnings.",
        "a fault",
    ]
