"""The parent's handle of a child process that measures."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from ..contract import MeasurementFailed

START_TIMEOUT_S = 180
END_TIMEOUT_S = 10  # for a core dump, say
MOST_COMPILERS = 32  # as torch has it
LOG_TAIL_BYTES = 2000
SETTINGS = {
    "KINETO_LOG_LEVEL": "99",  # the profiler would log each start and stop
    # Threads of OpenMP spin while they wait for each other; where another process wants a core they keep
    # off it the one that they wait for. On two cores, nn.LSTM of hidden 128, batch 4, seq 14: 0.8 ms on an
    # idle machine, hundreds beside one busy process. With this count 0.87 and 6.3 ms; without any
    # spinning (OMP_WAIT_POLICY=PASSIVE) 4.5 ms even on the idle machine.
    "GOMP_SPINCOUNT": "1000",
}
BOOT = (
    "import importlib, json, sys; config = json.loads(sys.argv[1]); sys.path[:] = config['path']; "
    "importlib.import_module(config['module']).main(config)"
)


class ChildDied(Exception):
    """The child closed its end of the pipe."""


class Child:
    """A process of its own session, so that Ctrl-C in the terminal does not reach it.

    It imports this package under the parent's name for it and from the parent's path, and runs the `main` of
    `worker`: that of this package, or of a module that has it run among further implementations. What it
    prints goes to a temporary file. It ends when this object is closed, or when the parent ends.
    """

    def __init__(
        self, torch_device: str, *, cache_bytes: int, threads: int, worker: str | None = None
    ) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        events, child_events = os.pipe()
        child_jobs, jobs = os.pipe()
        config = {
            "module": worker or f"{__package__}.worker",
            "path": sys.path,
            "torch_device": torch_device,
            "cache_bytes": cache_bytes,
            "threads": threads,
            "events": child_events,
            "jobs": child_jobs,
        }
        self._events, self._jobs, self._buffer = events, jobs, bytearray()
        self._torch_device = torch_device
        try:
            self._process = self._spawn(config, (child_events, child_jobs))
        except OSError as error:
            for descriptor in (events, jobs):
                os.close(descriptor)
            self._log.close()
            raise MeasurementFailed(f"No process can be started to measure in: {error}.") from error
        finally:
            os.close(child_events)
            os.close(child_jobs)

    def wait_until_ready(self) -> None:
        """Wait until the process has started. Raises MeasurementFailed, with what it said, if it did not."""
        try:
            self.receive(time.monotonic() + START_TIMEOUT_S)
        except (ChildDied, TimeoutError):
            raise MeasurementFailed(
                f"The measuring process for {self._torch_device} did not start: "
                f"{self.last_words() or 'it said nothing'}"
            ) from None

    def _spawn(self, config: dict[str, Any], descriptors: tuple[int, int]) -> subprocess.Popen[bytes]:
        # of torch.compile, which starts a process for each; 1: it compiles in this one
        compilers = min(MOST_COMPILERS, config["threads"])
        return subprocess.Popen(
            [sys.executable, "-c", BOOT, json.dumps(config)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=descriptors,
            start_new_session=True,
            env={**os.environ, **SETTINGS, "TORCHINDUCTOR_COMPILE_THREADS": str(compilers)},
        )

    def send(self, job: dict[str, Any]) -> None:
        """Hand over a job. Raises ChildDied."""
        try:
            os.write(self._jobs, json.dumps(job).encode() + b"\n")
        except BrokenPipeError:
            raise ChildDied from None

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next event. Raises TimeoutError after `deadline` (time.monotonic), ChildDied at the end."""
        poll = select.poll()
        poll.register(self._events, select.POLLIN)
        while b"\n" not in self._buffer:
            left_s = max(0.0, deadline - time.monotonic())
            if not poll.poll(left_s * 1000):
                raise TimeoutError
            data = os.read(self._events, 2**16)
            if not data:
                raise ChildDied
            self._buffer += data
        line, _, rest = self._buffer.partition(b"\n")
        self._buffer = rest
        event: dict[str, Any] = json.loads(line)
        return event

    def how_it_ended(self) -> str:
        """`killed by SIGSEGV` or `ended with exit code 3`, for a child that died."""
        try:
            code = self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "the process closed its pipe to this one, and went on"
        if code >= 0:
            return f"the process ended with exit code {code}"
        name = signal.Signals(-code).name
        hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"the process was killed by {name}{hint}"

    def last_words(self, since: int = 0) -> str:
        """The last line that the child printed after its first `since` bytes."""
        descriptor = self._log.fileno()
        start = max(since, os.fstat(descriptor).st_size - LOG_TAIL_BYTES)
        lines = os.pread(descriptor, LOG_TAIL_BYTES, start).decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:300] if lines else ""

    def kill(self) -> None:
        """Kill the child with everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the child and wait for it. May be called twice."""
        self.kill()
        self._process.wait()
        for descriptor in (self._events, self._jobs):
            if descriptor >= 0:
                os.close(descriptor)
        self._events = self._jobs = -1
        self._log.close()
