"""`selector serve`."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from ipaddress import ip_address
from multiprocessing import parent_process
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any
from weakref import WeakKeyDictionary

import typer

from .terminal import output
from .terminal.options import DatabaseOption, JsonOption, NoShippedOption
from .terminal.signals import end_at_once, ended_by_signals

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from types import FrameType

    import uvicorn
    from fastapi import FastAPI
    from uvicorn.supervisors.multiprocess import Process

    from selector import Selector

    from ..settings import Settings

WORKER_SILENCE_S = 60  # after which a worker counts as hung; importing torch can take that of a busy machine
WINDOW_S = (
    300  # in which so many ends of workers for each place are one fault that another start does not mend
)
MOST_ENDS = 5
MOST_WAIT_S = 60.0  # until the next start in a place where workers end again and again, while others answer
LOOK_S = 0.1  # how often to look whether the first worker is ready


@ended_by_signals()
def serve(
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 for all.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=1, max=65535, help="Port to listen on.")] = 8000,
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, max=256, help="Processes that answer; each has its own memory.")
    ] = 1,
    database: DatabaseOption = None,
    no_shipped: NoShippedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Serve choices over HTTP, until Ctrl-C.

    Examples:

    \b
      selector serve
      selector serve --host 0.0.0.0 --port 8080    (asks for tokens: see selector token)
      selector serve --workers 4
      curl -s localhost:8000/v1/choices -H 'content-type: application/json' -d '
        {"hyperparameters": {"hidden": 256, "batch": 32}}'
    """
    from selector import Selector
    from selector.selection.database import named_database

    from ..settings import Settings

    require_free(host, port)
    given: dict[str, Any] = {} if is_loopback(host) else {"tokens": "required"}
    settings = Settings.load(**given, **({"shipped": False} if no_shipped else {}))
    # what is wrong with the database is said here, once
    selector = Selector(named_database(database), shipped=settings.shipped, background=True)
    address = url("http", host, port)
    if workers == 1:
        _serve_here(selector, settings, (host, port), lambda: _announce(address, as_json))
        return
    selector.close()
    os.environ["SELECTOR_TOKENS"] = settings.tokens
    os.environ["SELECTOR_SHIPPED"] = "on" if settings.shipped else "off"
    if database is not None:
        os.environ["SELECTOR_DATABASE_URL"] = database
    _serve_with(workers, settings, (host, port), lambda: _announce(address, as_json))


def _serve_here(
    selector: Selector, settings: Settings, place: tuple[str, int], announce: Callable[[], None]
) -> None:
    """Answer in this process."""
    from ..app import collect_seldom, create_app

    collect_seldom()
    application = create_app(selector, settings=settings, warm=True, closes=True)
    configuration = _configuration(application, settings, place)
    _log_requests(settings)
    run_announced(configuration, announce)


def run_announced(configuration: uvicorn.Config, announce: Callable[[], None]) -> None:
    """Answer in this process until a signal ends it; announce it when it listens, not before."""
    import uvicorn

    class Announcing(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if not self.started:  # nothing is in flight that would have to be finished
                end_at_once(sig)
            super().handle_exit(sig, frame)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            announce()

    Announcing(configuration).run()


def _serve_with(
    workers: int, settings: Settings, place: tuple[str, int], announce: Callable[[], None]
) -> None:
    """Answer in several processes; one that dies is replaced. They add up their metrics in a folder."""
    from ..metrics import SHARED

    configuration = _configuration("kernel_selector.service.cli.serve:worker", settings, place)
    configuration.workers = workers
    with TemporaryDirectory() as folder:
        os.environ.setdefault(SHARED, folder)
        with configuration.bind_socket() as listening:
            Thread(target=_when_answered, args=(listening, announce), daemon=True).start()
            _supervise(configuration, listening)


def _supervise(configuration: uvicorn.Config, listening: socket.socket) -> None:
    """Run the workers until a signal ends them; each half second looks at every one and waits for none.

    Where a worker cannot start, or workers end again and again, further attempts wait longer and longer while
    another worker answers. Raises typer.Exit with 1 where none does.
    """
    from uvicorn.config import STARTUP_FAILURE
    from uvicorn.supervisors import Multiprocess
    from uvicorn.supervisors.multiprocess import Process

    from ..logs import LOGGER

    class Supervisor(Multiprocess):
        def __init__(self) -> None:
            super().__init__(configuration, [listening])
            self.pulses: WeakKeyDictionary[Process, Pulse] = WeakKeyDictionary()
            self.ends = Ends(MOST_ENDS * configuration.workers)
            self.waits_s = [0.0] * configuration.workers  # before the next start in each place
            self.due: WeakKeyDictionary[Process, float] = WeakKeyDictionary()  # when to replace what ended
            self.failed = False

        def keep_subprocess_alive(self) -> None:
            for place, process in enumerate(self.processes):
                if self.should_exit.is_set():
                    return
                if process not in self.due and (end := self.end_of(process)) is not None:
                    self.ended(place, process, end)
                if self.due.get(process, math.inf) <= time.monotonic():
                    self.processes[place] = Process(self.config, self.sockets)
                    self.processes[place].start()

        def ended(self, place: int, process: Process, end: str) -> None:
            """Settle when another worker takes the place of one that ended, or give up."""
            cannot_start = process.exitcode == STARTUP_FAILURE
            hopeless = self.ends.add() or cannot_start
            if hopeless and not any(_answers(one, self.pulses.get(one)) for one in self.processes):
                why = "cannot start" if cannot_start else f"{end}, as {self.ends.words} before"
                LOGGER.error("worker %d %s; the service ends", process.pid, why)
                self.failed = True
                self.should_exit.set()
                return
            wait_s = min(max(1.0, 2 * self.waits_s[place]), MOST_WAIT_S) if hopeless else 0.0
            self.waits_s[place], self.due[process] = wait_s, time.monotonic() + wait_s
            after = f" in {wait_s:.0f} s" if wait_s else ""
            LOGGER.warning("worker %d %s; another one takes its place%s", process.pid, end, after)

        def end_of(self, process: Process) -> str | None:
            """Words for the end of a worker, None while it lives; one that is hung is killed."""
            if not process.process.is_alive():
                process.kill()  # closes its pipe
                return _ending(process.exitcode)
            if process not in self.pulses:
                self.pulses[process] = Pulse(process.parent_conn)
            if self.pulses[process].silence_s() < WORKER_SILENCE_S:
                return None
            process.kill()
            process.join()
            return f"did not answer for {WORKER_SILENCE_S} s and was killed"

    supervisor = Supervisor()
    supervisor.run()
    if supervisor.failed:
        raise typer.Exit(1)


class Ends:
    """Ends of workers within a window of WINDOW_S, and whether there were too many of them."""

    def __init__(self, most: int) -> None:
        self._at: deque[float] = deque(maxlen=most)

    def add(self) -> bool:
        """Add an end; whether as many as may be had come before it in the window."""
        now = time.monotonic()
        is_one_too_many = len(self._at) == self._at.maxlen and now - self._at[0] < WINDOW_S
        self._at.append(now)
        return is_one_too_many

    @property
    def words(self) -> str:
        """Number of ends before the last, and the window."""
        return f"{self._at.maxlen} within {WINDOW_S} s"


class Pulse:
    """Pulse of a worker, by its answers on its pipe: it is asked again after each, and never waited for."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.has_started = False  # to take connections, by its last answer
        self._ask()

    def _ask(self) -> None:
        self._answered = time.monotonic()
        self._pipe.send(b"ping")

    def silence_s(self) -> float:
        """Seconds since it last answered, or was first asked."""
        if self._pipe.poll():
            self.has_started = self._pipe.recv()
            self._ask()
        return time.monotonic() - self._answered


def _answers(process: Process, pulse: Pulse | None) -> bool:
    """Whether a worker lives, and had started to answer when it was last heard of."""
    return process.process.is_alive() and pulse is not None and pulse.has_started


def _ending(exitcode: int | None) -> str:
    """Words for the end of a process, by its exit code: minus the signal where it was one."""
    if exitcode is not None and exitcode < 0:
        return f"died of signal {-exitcode} ({signal.strsignal(-exitcode)})"
    return f"ended with exit code {exitcode}"


def worker() -> FastAPI:
    """The application of one process of several, by the environment that `serve` has left it."""
    Thread(target=_end_with_parent, daemon=True).start()
    finish = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    server: uvicorn.Server = finish.__self__  # type: ignore[union-attr]  # whose method it is
    if server.should_exit:  # by a signal that came before
        end_at_once(signal.SIGTERM)
    from ..app import from_environment
    from ..settings import Settings

    _log_requests(Settings.load())
    application = from_environment()

    def heed(number: int, frame: FrameType | None) -> None:
        if not server.started:
            end_at_once(number)
        server.handle_exit(number, frame)

    signal.signal(signal.SIGTERM, heed)
    return application


def _end_with_parent() -> None:
    """Ends this process as SIGTERM does once the one that started it is gone: it would keep the port."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _configuration(application: FastAPI | str, settings: Settings, place: tuple[str, int]) -> uvicorn.Config:
    import uvicorn

    from ..connections import BoundedProtocol
    from ..logs import log_config

    return uvicorn.Config(
        application,
        http=BoundedProtocol,
        log_config=log_config(settings.log_format),
        factory=isinstance(application, str),
        host=place[0],
        port=place[1],
        log_level="warning",
        timeout_graceful_shutdown=settings.shutdown_s,
        timeout_worker_healthcheck=WORKER_SILENCE_S,  # of workers that SIGHUP starts in place of others
    )


def _log_requests(settings: Settings) -> None:
    """uvicorn's own remarks stay at warnings: our lines say what they would."""
    from ..logs import LOGGER

    if settings.access_log:
        LOGGER.setLevel(logging.INFO)


def _when_answered(listening: socket.socket, announce: Callable[[], None]) -> None:
    """Announce once a worker takes connections: it listens when it is ready, not before."""
    host, port = listening.getsockname()[:2]
    own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    while True:
        try:
            socket.create_connection((own, port)).close()
        except OSError:
            time.sleep(LOOK_S)
        else:
            announce()
            return


def _announce(address: str, as_json: bool) -> None:
    """Said when questions are answered, not before: scripts wait for it."""
    if as_json:
        output.print_json({"serving": address, "documentation": f"{address}/docs"})
        sys.stdout.flush()
    else:
        output.out().print(
            f"Serving on [bold]{address}[/] (documentation: {address}/docs). Ctrl-C stops.", soft_wrap=True
        )


def url(scheme: str, host: str, port: int) -> str:
    """URL of the service for clients."""
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether nobody from another machine can connect to it."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # another name: whatever it stands for
        return False


def require_free(host: str, port: int) -> None:
    """uvicorn would log a taken port and exit; this says what to do about it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise typer.BadParameter(
            f"cannot listen on {host} port {port} ({error.strerror or error}): "
            "choose another with --port or --host."
        ) from None
