"""Attacks on a service beside honest clients: python -m benchmarks.service.attacks [--seconds S].

`selector serve` over the measurements that ship, in a process of its own, and three kinds of processes around
it: clients that ask known questions at a steady rate, one that attacks on several connections for as long as
it can, and for the last row a relay in front of a PostgreSQL server, which falls silent. Each attack is
compared with the quiet before it, in turns, so that drift of the machine hits both alike; a latency counts
from when a question was due. Client, attacker and server share the machine's cores: figures beside an attack
are lower bounds, and how late clients themselves were to ask is written too, as part of their latency.
Writes `benchmarks/results/service_attacks.json`.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import multiprocessing
import shutil
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy.engine import make_url

from benchmarks.common import postgres
from benchmarks.common.result import write_result
from benchmarks.common.serving import Server, served
from kernel_selector.db import Database, records
from kernel_selector.kernels.devices import known_device
from kernel_selector.service import tokens
from selector.selection.shipped import unpacked
from tests.service.relay import Relay

LAYER: dict[str, Any] = {
    "operator": "lstm",
    "hyperparameters": {"hidden": 256, "batch": 32},
    "device": "h200",
}
LEAST_RATE, MOST_P99, MOST_MIB = 0.7, 2.0, 50.0  # beside an attack, of what they are without; and memory
CLIENTS, RATE = 4, 160.0  # honest connections, and questions a second of all of them together
RATE_OF_TOKENS = 20  # a second, as SECURITY.md asks of who gives tokens to others
ATTACKERS = 4  # connections that attack at once
RECORDS = 500  # in the database that falls silent
GIVEN_BACK_S = 2.0
HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CONTEXT = multiprocessing.get_context("fork")


class Target(NamedTuple):
    """A service, with the tokens that attackers have got."""

    port: int
    tokens: dict[str, str]


Attack = Callable[[Target, Callable[[], bool]], None]  # for as long as it is told


class Heard(NamedTuple):
    """Latencies of honest clients in milliseconds, the part of each before it asked, how many got no answer,
    and how long they asked."""

    latencies_ms: list[float]
    late_ms: list[float]
    failed: int
    seconds: float

    @property
    def per_s(self) -> float:
        """Answers a second."""
        return len(self.latencies_ms) / self.seconds

    @property
    def p99_ms(self) -> float:
        """99th percentile of the latencies."""
        return _p99(self.latencies_ms)

    @property
    def late_p99_ms(self) -> float:
        """99th percentile of their parts before a client asked, which had no processor."""
        return _p99(self.late_ms)


def large_heads(target: Target, goes_on: Callable[[], bool]) -> None:
    """Heads of small headers without an end, 88 MB if they are taken."""
    while goes_on():
        with connected(target) as connection:
            connection.sendall(HEAD)
            for _ in range(88 * 2**20 // 8000):
                connection.sendall(b"X-A: b\r\n" * 1000)
                if not goes_on():
                    break


def trailers(target: Target, goes_on: Callable[[], bool]) -> None:
    """Trailers without an end behind a chunked body."""
    while goes_on():
        with connected(target) as connection:
            connection.sendall(
                b"POST /v1/choices HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
            )
            while goes_on():
                connection.sendall(b"X-A: b\r\n" * 1000)


def pipelined(target: Target, goes_on: Callable[[], bool]) -> None:
    """60 MB of requests in a row for a long answer, none of which is read."""
    request = HEAD.replace(b"/healthz", b"/openapi.json") + b"\r\n"
    while goes_on():
        with connected(target) as connection:
            connection.settimeout(0.5)
            for _ in range(60 * 2**20 // (len(request) * 1000)):
                connection.sendall(request * 1000)
                if not goes_on():
                    break


def slow_connections(target: Target, goes_on: Callable[[], bool]) -> None:
    """A hundred connections, each with a byte of a head now and then."""
    opened = [socket.create_connection(("127.0.0.1", target.port)) for _ in range(100)]
    for place in itertools.cycle(range(len(HEAD))):
        for one in opened:
            with suppress(OSError):
                one.sendall(HEAD[place : place + 1])
        time.sleep(0.2)
        if not goes_on():
            break
    for one in opened:
        one.close()


def bad_lines(target: Target, goes_on: Callable[[], bool]) -> None:
    """16 MB of lines that are no records, with a token `measure`."""
    body = b"{}\n" * (16 * 2**20 // 3)
    headers = {"content-type": "application/x-ndjson", "authorization": f"Bearer {target.tokens['measure']}"}
    while goes_on():
        with connected(target, ask=True) as connection:
            connection.request("POST", "/v1/measurements", body, headers)
            connection.getresponse().read()


def unsure_questions(target: Target, goes_on: Callable[[], bool]) -> None:
    """Questions that nobody asked before and that are answered without being sure, with a token `read`."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {target.tokens['read']}"}
    sizes = itertools.count(int(time.time() * 1e3) % 10**6)
    with connected(target, ask=True) as connection:
        while goes_on():
            layer = {"hidden": 8 + next(sizes) % 50_000, "batch": 3}
            body = json.dumps({**LAYER, "hyperparameters": layer})
            connection.request("POST", "/v1/choices", body, headers)
            connection.getresponse().read()


ATTACKS: dict[str, Attack] = {
    "heads of 88 MB": large_heads,
    "trailers without end": trailers,
    "60 MB of pipelined requests, unread": pipelined,
    "100 slow connections each": slow_connections,
    "16 MB of lines that are no records": bad_lines,
    "unsure questions of a reading token": unsure_questions,
}


def main() -> None:
    """Attack, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="quiet and attack in turns")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = str(Path(folder) / "measurements.sqlite")
        shutil.copy(unpacked(), database)
        known = {scope: tokens.create_token(database, scope, scopes=[scope]) for scope in ("read", "measure")}
        with served(database, SELECTOR_REQUESTS_PER_S=str(RATE_OF_TOKENS)) as server:
            rows = [
                row(name, server, partial(attacking, attack, Target(server.port, known)), given)
                for name, attack in ATTACKS.items()
            ]
    rows.append(silent_database(given))
    limits = {"requests_per_s": LEAST_RATE, "p99": MOST_P99, "memory_mib": MOST_MIB}
    asked = {"honest_clients": CLIENTS, "asked_per_s": RATE, "attacking_connections": ATTACKERS}
    asked["rate_of_tokens_per_s"] = RATE_OF_TOKENS
    for one in rows:
        print(json.dumps(one))
    turns = {"seconds": given.seconds, "rounds": given.rounds}
    print(write_result("service_attacks", {"limits": limits, **asked, **turns, "attacks": rows}))


def row(
    name: str, server: Server, attack: Callable[[], contextmanager[None]], given: argparse.Namespace
) -> dict[str, Any]:
    """Row of an attack: rate and latency of honest clients beside it, and the memory that it leaves."""
    server.wait_until_idle()  # what it warms up with is memory, too
    honest(server.port, 1.0)
    before, pairs = server.memory_mib(), list[tuple[Heard, Heard]]()
    for _ in range(given.rounds):
        quiet = honest(server.port, given.seconds)
        with attack():
            pairs.append((quiet, honest(server.port, given.seconds)))
        time.sleep(GIVEN_BACK_S)
    after = server.memory_mib()
    failed = sum(beside.failed for _, beside in pairs)
    rate = statistics.median(beside.per_s / quiet.per_s for quiet, beside in pairs)
    p99 = statistics.median(beside.p99_ms / quiet.p99_ms for quiet, beside in pairs)
    held = not failed and rate >= LEAST_RATE and p99 <= MOST_P99 and after - before <= MOST_MIB
    return {
        "attack": name,
        "held": held,
        "memory_before_mib": round(before, 1),
        "memory_after_mib": round(after, 1),
        "requests_per_s": round(statistics.median(beside.per_s for _, beside in pairs), 1),
        "without": round(statistics.median(quiet.per_s for quiet, _ in pairs), 1),
        "of_without": round(rate, 3),
        "p99_ms": round(statistics.median(beside.p99_ms for _, beside in pairs), 2),
        "p99_without_ms": round(statistics.median(quiet.p99_ms for quiet, _ in pairs), 2),
        "p99_times": round(p99, 2),
        "late_p99_ms": round(statistics.median(beside.late_p99_ms for _, beside in pairs), 2),
        "late_p99_without_ms": round(statistics.median(quiet.late_p99_ms for quiet, _ in pairs), 2),
        "unanswered": failed,
    }


def silent_database(given: argparse.Namespace) -> dict[str, Any]:
    """The row of a PostgreSQL server that falls silent, which nobody who is answered from memory notices."""
    with postgres.running() as store:
        with Database.open(unpacked()) as shipped, shipped.read() as source:
            key = known_device(LAYER["device"]).key
            some = list(records.find(source, operator="lstm", device_key=key, limit=RECORDS))
        with Database.open(store.url, create=True) as filled, filled.write() as target:
            records.add(target, some)
        relay = Relay("127.0.0.1", store.port)
        url = make_url(store.url).set(port=relay.port).render_as_string(hide_password=False)

        @contextmanager
        def silence() -> Iterator[None]:
            relay.hush()
            yield
            relay.speak()
            time.sleep(2 * GIVEN_BACK_S)

        with served(url) as server:
            found = row("a silent PostgreSQL server", server, silence, given)
        relay.close()
    return found


@contextmanager
def connected(target: Target, *, ask: bool = False) -> Iterator[Any]:
    """A connection, as a socket or for requests; what the service does to end it ends the block."""
    connection: Any = (
        http.client.HTTPConnection("127.0.0.1", target.port, timeout=30)
        if ask
        else socket.create_connection(("127.0.0.1", target.port), timeout=30)
    )
    with suppress(OSError, http.client.HTTPException):
        yield connection
    connection.close()


@contextmanager
def attacking(attack: Attack, target: Target) -> Iterator[None]:
    """A process that attacks while the block runs."""
    ended = CONTEXT.Event()
    process = CONTEXT.Process(target=_attack, args=(attack, target, ended))
    process.start()
    try:
        time.sleep(0.5)
        yield
    finally:
        ended.set()
        process.join(10)
        process.kill()


def _attack(attack: Attack, target: Target, ended: Event) -> None:
    threads = [
        threading.Thread(target=attack, args=(target, lambda: not ended.is_set()), daemon=True)
        for _ in range(ATTACKERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _p99(times_ms: list[float]) -> float:
    return statistics.quantiles(times_ms, n=100)[98] if len(times_ms) > 1 else 1e9


def honest(port: int, seconds: float) -> Heard:
    """Answers to honest clients in a process of their own."""
    mine, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=lambda: theirs.send(_ask(port, seconds)))
    process.start()
    found: Heard = mine.recv()
    process.join()
    return found


def _ask(port: int, seconds: float) -> Heard:
    latencies: list[float] = []
    lates: list[float] = []
    failures: list[str] = []
    started = time.perf_counter()

    def ask(place: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        due = started + place / RATE
        while due < started + seconds:
            time.sleep(max(0.0, due - time.perf_counter()))
            late_ms = (time.perf_counter() - due) * 1e3
            try:
                connection.request(
                    "POST", "/v1/choices", json.dumps(LAYER), {"content-type": "application/json"}
                )
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    raise http.client.HTTPException(str(answer.status))
                latencies.append((time.perf_counter() - due) * 1e3)
                lates.append(late_ms)
            except (OSError, http.client.HTTPException) as error:
                failures.append(str(error))
                connection.close()
            due += CLIENTS / RATE

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Heard(latencies, lates, len(failures), max(seconds, time.perf_counter() - started))


if __name__ == "__main__":
    main()
