"""The same questions to a service: `Client(url).choose(...)` instead of `choose(...)`."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterable, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult, urlsplit

from kernel_selector.kernels import contract
from kernel_selector.kernels.contract import Device, Record, SelectorError
from kernel_selector.kernels.contract.errors import shorten
from kernel_selector.kernels.contract.hyperparameter import plain
from kernel_selector.kernels.contract.record import LAUNCHED

from .. import errors
from ..errors import InvalidRequest, ServiceError, ServiceUnavailable
from .choice import Choice

_PLAIN = re.compile(r"[!-~]+")  # what a header and a path may hold
LONGEST_S = 86_400.0  # that an answer may be waited for
PROBLEM = "urn:kernel-selector:problem:"
RAISED: dict[str, type[SelectorError]] = {  # what `choose` would raise here
    "unknown-operator": contract.UnknownOperator,
    "unknown-implementation": contract.UnknownImplementation,
    "unknown-device": contract.UnknownDevice,
    "unknown-hyperparameter": contract.UnknownHyperparameter,
    "invalid-hyperparameter": contract.InvalidHyperparameter,
    "ambiguous-hyperparameter": contract.AmbiguousHyperparameter,
    "unsupported-problem": contract.UnsupportedProblem,
    "invalid-request": errors.InvalidRequest,
    "nothing-fits": errors.NothingFits,
    "no-measurements": errors.NoMeasurements,
    "model-unusable": errors.ModelVersionMismatch,
}


class Client:
    """Asks the service at a URL. Keeps connections open; safe to share among threads.

    `token` is what `selector token create` printed, None where the service needs none; `ssl_context` is for
    authorities of one's own. All methods raise ServiceError when the service cannot be reached, refuses
    the token or fails.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        timeout_s: float = 10.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        if token and not (isinstance(token, str) and _PLAIN.fullmatch(token)):
            raise InvalidRequest("The token is none: expected what `selector token create` printed, no more.")
        self._parts = _parts(url)
        if timeout_s is not None and not (isinstance(timeout_s, int | float) and 0 < timeout_s <= LONGEST_S):
            raise InvalidRequest(f"timeout_s={shorten(timeout_s)}: expected seconds from above 0 to a day.")
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._ssl_context = ssl_context
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._idle: list[HTTPConnection] = []  # append and pop of a list are atomic

    def choose(
        self,
        operator: str | None = None,
        /,
        *,
        device: str | Device | None = None,
        memory: str | int | None = None,
        objective: str = "time",
        override: str | None = None,
        among: Sequence[str] | None = None,
        regime: object = LAUNCHED,
        **hyperparameters: object,
    ) -> Choice:
        """The service's choice, as of `selector.choose`; for its own machine where no device is given.

        Raises what `selector.choose` raises. `torch_device` of the answer is None, because it would be one
        of the other machine: `choice.build()` looks for the device in this one, and takes a `device`.
        """
        question: dict[str, Any] = {
            "operator": operator,
            "hyperparameters": hyperparameters,
            "device": device.key if isinstance(device, Device) else device,
            "memory": memory,
            "objective": objective,
            "override": override,
            "among": tuple(among) if isinstance(among, Iterable) and not isinstance(among, str) else among,
        }
        if regime != LAUNCHED:  # which earlier services do not know
            question["regime"] = regime
        answer = self.ask("POST", "/v1/choices", question)
        try:
            return Choice.from_dict(answer)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ServiceError(f"{self.url} answered with what is no choice: {error!r}.") from error

    def send(self, records: Iterable[Record]) -> dict[str, Any]:
        """Store measurements in the service's database; returns what became of them. Sending again is safe.

        Needs a token with the scope `measure`. Raises InvalidRequest when one of them is refused.
        """
        lines = "".join(f"{record.to_json()}\n" for record in records)
        found: dict[str, Any] = self._ask(
            "POST", "/v1/measurements", lines.encode(), content_type="application/x-ndjson"
        )
        return found

    def ask(self, method: str, path: str, question: dict[str, Any]) -> Any:
        """The service's answer to a JSON document, as docs/rest.md has them."""
        return self._ask(method, path, _json(question))

    def close(self) -> None:
        """Close the connections that are idle; another question opens a new one."""
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, method: str, path: str, body: bytes, *, content_type: str = "application/json") -> Any:
        headers = {**self._headers, "Content-Type": content_type}
        status, answer = self._exchange(method, self._parts.path.rstrip("/") + path, body, headers)
        failed = ServiceUnavailable if status >= 500 or status == 429 else ServiceError
        try:
            document = json.loads(answer)
        except (ValueError, RecursionError) as error:  # of a proxy, for example
            raise failed(f"{self.url} answered {status} with what is not JSON: {error}.") from error
        if status in (200, 202):
            return document
        detail = str(document.get("detail", document)) if isinstance(document, dict) else str(document)
        kind = str(document.get("type", "")) if isinstance(document, dict) else ""
        kind = kind.removeprefix(PROBLEM)
        raised = RAISED.get(kind)
        if raised is not None:
            raise raised(detail)
        raise failed(f"{self.url} answered {status}: {detail}", kind)

    def _exchange(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """Status and body. Asks again when an idle connection turns out to be closed by the service."""
        while True:
            idle = self._idle.pop() if self._idle else None
            connection = idle or self._connection()
            try:
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                found = response.status, response.read()
            except (OSError, HTTPException) as error:
                connection.close()
                # a time-out is an answer of a kind: no second one of the same length
                if idle is None or isinstance(error, TimeoutError):
                    words = error or type(error).__name__
                    raise ServiceUnavailable(f"{self.url} cannot be asked: {words}.") from error
            else:
                self._idle.append(connection)
                return found

    def _connection(self) -> HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            return HTTPSConnection(host, port, timeout=self._timeout_s, context=self._ssl_context)
        return HTTPConnection(host, port, timeout=self._timeout_s)


def _parts(url: str) -> SplitResult:
    """The parts of a URL that can be asked. Raises InvalidRequest."""
    try:
        if isinstance(url, str) and _PLAIN.fullmatch(url):
            parts = urlsplit(url)
            host = (parts.hostname or "").encode("idna")
            if "@" in parts.netloc:  # it would be shown in every error, and never sent
                raise InvalidRequest(
                    "The url has a user or a password: a service takes neither, give token=."
                )
            whole = not (parts.query or parts.fragment)
            if parts.scheme in ("http", "https") and host and parts.port != 0 and whole:
                return parts
    except InvalidRequest:
        raise
    except ValueError:  # of the address, the port or the name
        pass
    raise InvalidRequest(f"url={shorten(url)}: expected http://host:port or https://host:port.")


def _plain(value: object) -> object:
    """For JSON, which knows no numbers of NumPy's."""
    found = plain(value)
    if found is value:
        raise TypeError(f"{shorten(value)} is no value of JSON")
    return found


def _json(question: dict[str, Any]) -> bytes:
    try:
        return json.dumps(question, allow_nan=False, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"The question cannot be written as JSON: {error}.") from error
