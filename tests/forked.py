"""Measuring processes as forks of one that has imported torch, which takes each of them two seconds.

As a program this is that process: its argument is the descriptor of a socket, of which each message is a
request with the descriptors of the log, of the pipe of events, of that of jobs and of a socket for answers:
the number of the process, and the status with which it ended.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LARGEST = 2**17  # bytes of a request


class Forked:
    """The process of a `Child`, as it starts and waits for one: a child of a child of this one."""

    def __init__(self, request: dict[str, Any], descriptors: tuple[int, ...]) -> None:
        self._answers, answers = socket.socketpair()
        with answers:
            socket.send_fds(_forks(), [json.dumps(request).encode()], [*descriptors, answers.fileno()])
        self._lines = self._answers.makefile()
        self.pid = int(self._lines.readline())
        self._status: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its status when it has ended, as subprocess gives it."""
        if self._status is None:
            self._answers.settimeout(timeout)
            try:
                self._status = int(self._lines.readline())
            except TimeoutError:
                raise subprocess.TimeoutExpired("a measuring process", timeout or 0) from None
            self._lines.close()
            self._answers.close()
        return self._status


def spawn(child: Any, config: dict[str, Any], descriptors: tuple[int, int]) -> Forked:
    """What `Child._spawn` does."""
    from kernel_selector.kernels.measure.child import BOOT, SETTINGS

    environment = {**os.environ, **SETTINGS}
    request = {"boot": BOOT, "config": config, "environment": environment, "folder": os.getcwd()}
    return Forked(request, (child._log.fileno(), *descriptors))


@cache
def _forks() -> socket.socket:
    """The socket of the process that forks."""
    from kernel_selector.kernels.measure.child import SETTINGS

    requests, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with other:
        process = subprocess.Popen(
            [sys.executable, __file__, str(other.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[other.fileno()],
            start_new_session=True,
            env={**os.environ, **SETTINGS, "PYTHONPATH": str(ROOT)},
        )

    @atexit.register
    def end() -> None:
        requests.close()
        process.wait()

    return requests


def _serve(requests: socket.socket) -> None:
    """Fork for each request, until there will be no more."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, LARGEST, 4)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            _watch(json.loads(message), *descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        while _ended():
            pass


def _ended() -> bool:
    """Whether a process of ours had ended that nobody had waited for."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _watch(request: dict[str, Any], log: int, events: int, jobs: int, answers: int) -> None:
    """Fork once more: in the child return after the work, and in the parent say how that ended."""
    child = os.fork()
    if child == 0:
        os.close(answers)
        _work(request, log, events, jobs)
        return
    for descriptor in (log, events, jobs):
        os.close(descriptor)
    os.write(answers, f"{child}\n".encode())
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(answers, f"{status}\n".encode())
    os._exit(0)


def _work(request: dict[str, Any], log: int, events: int, jobs: int) -> None:
    """What a new interpreter would do."""
    os.setsid()
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["-c", json.dumps({**request["config"], "events": events, "jobs": jobs})]
    exec(request["boot"], {"__name__": "__main__"})


def _main() -> None:
    import torch

    from kernel_selector.kernels.measure import worker  # noqa: F401

    torch.ones(1, requires_grad=True).mul(2).backward(torch.ones(1))  # imports what gradients need
    assert "triton" not in sys.modules, "whether kernels are interpreted is decided where they are imported"
    _serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    _main()
