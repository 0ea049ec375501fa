"""Access control of the service: tokens, scopes and request rates, checked before a body is read.

A connection over the loopback interface may read without a token unless settings say otherwise, if it asks
for this host: a page in somebody's browser, whose name was made to lead here, and a proxy that passes on
what others ask, name another one. Writing always needs a token.

On the page that people open, and nowhere else, a browser may give the token as the password of HTTP Basic: it
then sends it by itself, which must not do more than read that page.
"""

from __future__ import annotations

import asyncio
import re
import time
from base64 import b64decode
from contextlib import suppress
from functools import partial
from ipaddress import ip_address

from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from kernel_selector.kernels.contract import SelectorError
from selector.selection.query_log import ASKER

from .logs import LOGGER
from .problem_details import BY_STATUS, kind_of, problem, reason
from .tokens import AccessList, Grant

LOOKS = frozenset({"/page/style.css", "/page/icon.svg"})
DOCUMENTATION = frozenset(
    {"/openapi.json", "/docs", "/docs/documentation.js", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css"}
)
# of a Host header: a name or an IPv4 address, or an IPv6 address in brackets, and a port (RFC 9110)
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)\]|([A-Za-z0-9.-]+))(?::([0-9]{1,5}))?")
PORTS = range(1, 2**16)
FREE = frozenset({"/healthz", "/readyz"}) | DOCUMENTATION | LOOKS
PAGE = "/"
BEARER = {"www-authenticate": "Bearer"}
BASIC = {"www-authenticate": 'Basic realm="kernel-selector: a token as password", charset="UTF-8"'}
READABLE = frozenset({"/v1/measurements", "/v1/profiling-jobs"})  # that others may write to
NEEDED = {
    ("POST", "/v1/measurements"): "measure",
    ("GET", "/v1/quarantine"): "admin",
    ("GET", "/v1/audit"): "admin",
    ("POST", "/v1/measurements:retract"): "admin",
    ("POST", "/v1/measurements:release"): "admin",
    ("POST", "/v1/measurements:undo"): "admin",
    ("POST", "/v1/profiling-jobs"): "admin",
    ("POST", "/v1/profiling-tasks:claim"): "measure",
    ("POST", "/v1/profiling-tasks:heartbeat"): "measure",
    ("POST", "/v1/profiling-tasks:finish"): "measure",
}
# by path, for methods that it does not have: whoever may not use it is not told which it has
CLOSED = {path: scope for (_, path), scope in NEEDED.items() if path not in READABLE}
REFUSED_S = 0.1  # that a request beyond the rate waits for being told so
BURST_S = 2.0  # of its rate that a token may use at once
ANONYMOUS = Grant(name="local", scopes=frozenset({"read"}))
NO_SUCH_PATH = "The path has a character that no path here has. /openapi.json lists what there is."
# one text for all of them: neither a wrong nor an old secret is worth a hint
UNAUTHORIZED = "Expected `Authorization: Bearer` with a valid token: `selector token create` makes one."


def needed_scope(method: str, path: str) -> str:
    """The scope that a request needs."""
    return "admin" if method == "DELETE" else NEEDED.get((method, path)) or CLOSED.get(path, "read")


def without_scope(needed: str) -> str:
    """Answer to a request whose token lacks a scope, in words."""
    return f"This needs a token with the scope {needed!r}."


def own_path(scope: Scope) -> str:
    """The path of a request below the prefix under which the service stands, as its routes see it.

    A prefix comes from an application that mounts this one, and from uvicorn's `--root-path`.
    """
    path, prefix = str(scope["path"]), str(scope.get("root_path", ""))
    below = path.removeprefix(prefix)
    return below if below[:1] in ("", "/") else path


class Access:
    """Answers 401 without a valid token, 403 without the scope, 429 beyond the rate; else goes on."""

    def __init__(self, app: ASGIApp, *, required: bool, requests_per_s: float) -> None:
        self.app = app
        self.required = required
        self.rates = Rates(requests_per_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = own_path(scope) if scope["type"] == "http" else ""
        if scope["type"] != "http" or path in FREE:
            await self.app(scope, receive, send)
            return
        if not path.isprintable():  # routes match before a newline at the end, and look-ups of paths do not
            await _refuse(404, NO_SUCH_PATH, {}, scope, receive, send)
            return
        needed = needed_scope(scope["method"], path)
        try:
            grant = await self._grant(scope)
        except SelectorError as error:
            LOGGER.warning("tokens cannot be looked up: %s", error)
            # whoever asks is not known
            answer = problem(kind_of(error), reason(type(error).__name__), scope=scope)
            await answer(scope, receive, send)
            return
        if grant is None or (grant is ANONYMOUS and needed != "read"):
            challenge = BASIC if path == PAGE else BEARER
            await _refuse(401, UNAUTHORIZED, challenge, scope, receive, send)
        elif needed not in grant.scopes:
            await _refuse(403, without_scope(needed), {}, scope, receive, send)
        elif grant is not ANONYMOUS and (wait_s := self.rates.wait_s(grant.name)) > 0:
            detail = f"This token may ask {self.rates.per_s:g} times a second. Ask for many things at once."
            await asyncio.sleep(REFUSED_S)  # else who asks again at once would take the time of others
            await _refuse(429, detail, {"retry-after": str(int(wait_s) + 1)}, scope, receive, send)
        else:
            scope["author"], scope["scopes"] = grant.name, grant.scopes
            ASKER.set(grant.name)
            scope["still_granted"] = partial(self._still, scope, grant)
            await self.app(scope, receive, send)

    async def _still(self, scope: Scope, before: Grant) -> bool:
        """Whether the token counts when the body has come, which may take any time."""
        return before is ANONYMOUS or await self._grant(scope) == before

    async def _grant(self, scope: Scope) -> Grant | None:
        header = Headers(scope=scope).get("authorization")
        if header is None:
            local = not self.required and is_local(scope) and names_this_host(scope)
            return ANONYMOUS if local else None
        access: AccessList = scope["app"].state.access
        if access.is_due():
            await run_in_threadpool(access.refresh)
        if own_path(scope) == PAGE and (given := _given(header, "basic")) is not None:
            return access.grant(password(given))
        given = _given(header, "bearer")
        return None if given is None else access.grant(given)


def allows(scope: Scope, needed: str) -> bool:
    """Whether a request that anybody may make has a token with this scope. May wait for the database."""
    given = _given(Headers(scope=scope).get("authorization", ""), "bearer")
    if given is None:
        return False
    access: AccessList = scope["app"].state.access
    with suppress(SelectorError):  # those that were read before go on counting
        if access.is_due():
            access.refresh()
    grant = access.grant(given)
    return grant is not None and needed in grant.scopes


def _given(header: str, kind: str) -> str | None:
    """What an Authorization header of a kind gives; None of another one."""
    named, _, given = header.partition(" ")
    return given.strip() if named.lower() == kind else None


class Rates:
    """A bucket of requests for each token, refilled evenly; each process of the service has its own."""

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s  # 0: without limit
        self._buckets: dict[str, tuple[float, float]] = {}  # requests that are left, and when that was

    def wait_s(self, name: str) -> float:
        """0 when the request may go on, else seconds until one may. Names are of valid tokens: few."""
        if not self.per_s:
            return 0.0
        now, most = time.monotonic(), max(1.0, self.per_s * BURST_S)
        left, then = self._buckets.get(name, (most, now))
        left = min(most, left + (now - then) * self.per_s)
        self._buckets[name] = (left - 1 if left >= 1 else left), now
        return 0.0 if left >= 1 else (1 - left) / self.per_s


def password(credentials: str) -> str:
    """The password of HTTP Basic, whatever the user's name; "" where there is none."""
    try:
        return b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:  # no base64, or no UTF-8 in it
        return ""


def is_local(scope: Scope) -> bool:
    """Whether the connection came in over the loopback interface: its own end says so, not the client."""
    server = scope.get("server")
    try:
        return server is not None and ip_address(server[0]).is_loopback
    except ValueError:  # a path, of a Unix socket
        return False


def names_this_host(scope: Scope) -> bool:
    """Whether the request asks for the loopback interface by address or as localhost, and nothing else."""
    hosts = Headers(scope=scope).getlist("host")
    found = HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if found is None or int(found[3] or PORTS[0]) not in PORTS:
        return False
    try:
        return (found[2] or "").lower() == "localhost" or ip_address(found[1] or found[2]).is_loopback
    except ValueError:
        return False


async def refuse_ended(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer to a token that ended while the body came, as to any that is none."""
    await _refuse(401, UNAUTHORIZED, BEARER, scope, receive, send)


async def _refuse(
    status: int, detail: str, headers: dict[str, str], scope: Scope, receive: Receive, send: Send
) -> None:
    # the body is not read, so the connection cannot be used again
    answer = problem(BY_STATUS[status], detail, scope=scope, headers={**headers, "connection": "close"})
    await answer(scope, receive, send)
