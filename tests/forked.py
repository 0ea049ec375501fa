"""Python programs as forks of a process that has imported what they will: it takes them two seconds each.

As a program this is that process: its argument is the descriptor of a socket, of which each message is a
request with the descriptors that the program gets and of a socket for answers: the number of the process,
and the status with which it ended.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import multiprocessing.util
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
LARGEST = 2**17  # bytes of a request
MOST_DESCRIPTORS = 16
ABOVE = 1000  # descriptors that no program expects
ANEW = ("kernel_selector.service", "prometheus_client")  # which looks at its environment when it is imported
IMPORTED = (
    "anyio._backends._asyncio",
    "click",
    "httptools",
    "kernel_selector.kernels.measure.worker",
    "kernel_selector.service.app",
    "kernel_selector.service.cli",
    "uvicorn.main",
    "uvicorn.supervisors",
    "uvloop",
)


class Forked(subprocess.Popen[Any]):
    """A process of `[sys.executable, "-c" or "-m", ...]` that is a fork; any other is a process as always.

    It is a child of a child of another one; of what Popen can, `preexec_fn` does nothing.
    """

    _answers: socket.socket | None = None

    def _execute_child(self, *given: Any) -> None:
        args, _, _, _, kept, folder, environment, *_ = given
        pipes, new_session = given[10:16], given[21]
        if not _is_forked(args):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        request = {
            "args": [str(arg) for arg in args],
            "folder": str(folder or Path.cwd()),
            "environment": {**(os.environ if environment is None else environment)},
            "new_session": new_session,
            "kept": kept,
        }
        standard = [one if one >= 0 else number for number, one in enumerate((pipes[0], pipes[3], pipes[5]))]
        self._answers, answers = socket.socketpair()
        with answers:
            descriptors = [answers.fileno(), *standard, *kept]
            socket.send_fds(_forks(), [json.dumps(request).encode()], descriptors)
        self._lines = self._answers.makefile()
        self.pid = int(self._lines.readline())
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if self._answers is None:
            return super()._try_wait(flags)  # type: ignore[misc, no-any-return]
        if flags & os.WNOHANG and not select.select([self._answers], [], [], 0)[0]:
            return 0, 0
        status = int(self._lines.readline())
        self._lines.close()
        self._answers.close()
        return self.pid, status

    def _internal_poll(self, *given: Any, **named: Any) -> int | None:
        if self._answers is None:
            return super()._internal_poll(*given, **named)  # type: ignore[misc, no-any-return]
        if self.returncode is None:
            ended, status = self._try_wait(os.WNOHANG)
            if ended:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


def _is_forked(args: Sequence[str]) -> bool:
    return not isinstance(args, str) and args[0] == sys.executable and args[1] in {"-c", "-m"}


@cache
def _forks() -> socket.socket:
    """The socket of the process that forks."""
    from kernel_selector.kernels.measure.child import SETTINGS  # some of which are read at its start

    requests, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with other:
        process = subprocess.Popen(
            [sys.executable, __file__, str(other.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[other.fileno()],
            start_new_session=True,
            env={**os.environ, **SETTINGS, "PYTHONPATH": str(ROOT)},
        )

    @atexit.register
    def end() -> None:
        requests.close()
        process.wait()

    return requests


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; in the fork return it, and None when there will be no more."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, LARGEST, MOST_DESCRIPTORS)
        if not message:
            return None
        if os.fork() == 0:
            requests.close()
            return _watched(json.loads(message), descriptors)
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


def _watched(request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
    """Fork once more: in the child return the request, and in the parent say how that ended."""
    answers, *its = descriptors
    child = os.fork()
    if child == 0:
        os.close(answers)
        _settle(request, its)
        return request
    for descriptor in its:
        os.close(descriptor)
    os.write(answers, f"{child}\n".encode())
    status = os.waitpid(child, 0)[1]
    os.write(answers, f"{status}\n".encode())
    os._exit(0)


def _settle(request: dict[str, Any], descriptors: list[int]) -> None:
    """Take over what subprocess gives to a process."""
    if request["new_session"]:
        os.setsid()
    numbers = [0, 1, 2, *request["kept"]]
    above = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, ABOVE) for one in descriptors]
    for one in descriptors:
        os.close(one)
    for one, number in zip(above, numbers, strict=True):
        os.dup2(one, number)
        os.close(one)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])


def _run(option: str, what: str, *arguments: str) -> None:
    """What a new interpreter does with these arguments."""
    sys.path[0] = "" if option == "-c" else os.getcwd()
    sys.argv = ["-c", *arguments]
    fork_workers()
    main = sys.modules["__main__"] = ModuleType("__main__")
    if option == "-c":
        exec(what, main.__dict__)
    else:
        runpy.run_module(what, run_name="__main__", alter_sys=True)


def fork_workers(start_s: float = 0.0) -> None:
    """Let multiprocessing fork the processes that it would start with what this one has imported.

    Each does nothing in its first `start_s` seconds, in which others would import.
    """

    started = multiprocessing.util.spawnv_passfds

    def forked(program: str, args: list[bytes], kept: Sequence[int]) -> int:
        if b"resource_tracker" in b" ".join(map(os.fsencode, args)):  # Python's helper
            return started(program, args, kept)
        worker = os.fork()
        if worker:
            return worker
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for one in map(int, os.listdir("/proc/self/fd")):
                if one > 2 and one not in kept:
                    with suppress(OSError):  # that of the listing
                        os.close(one)
            for name in [one for one in sys.modules if one.startswith(ANEW)]:
                del sys.modules[name]
            time.sleep(start_s)
            words = [os.fsdecode(one) for one in args]
            at = words.index("-c")
            sys.argv = ["-c", *words[at + 2 :]]
            exec(words[at + 1], ModuleType("__main__").__dict__)
            os._exit(0)
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else 1 if end.code else 0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    multiprocessing.util.spawnv_passfds = forked


def _main() -> None:
    import torch

    for name in IMPORTED:
        import_module(name)
    from kernel_selector.kernels import registry

    for operator in registry.operators():
        registry.implementations(operator)
    torch.ones(1, requires_grad=True).mul(2).backward(torch.ones(1))  # imports what gradients need
    assert "triton" not in sys.modules, "whether kernels are interpreted is decided where they are imported"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()
    gc.freeze()
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        gc.unfreeze()
        _run(*request["args"][1:])


if __name__ == "__main__":
    _main()
