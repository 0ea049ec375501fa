"""The child process: measures what the parent asks for, and may die of it."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import resource
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .. import registry
from .clock import Clock, EventClock, HostClock
from .policies import Policy
from .problem_run import ChildMustEnd, ProblemRun

MEMORY_SHARE = 0.8  # of the memory that is free when the child starts: the rest is the system's
LEAK_SHARE = 0.25  # of its allowance that a child may keep after a problem before it is replaced


class Pipe:
    """Events to the parent, one JSON line each. Not stdout: candidates may print there."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, event: str, **content: Any) -> None:
        """Write one event; lines longer than the pipe's buffer wait for the parent to read."""
        data = json.dumps({"event": event, **content}).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]

    def stage(self, implementation: str | None, stage: str) -> None:
        """Report that a candidate, or None for what all share, is about to start a stage."""
        self.send("stage", implementation=implementation, stage=stage, printed=_printed_bytes())

    def outcome(self, implementation: str, outcome: dict[str, Any], *, final: bool = True) -> None:
        """Report a candidate's outcome."""
        self.send("outcome", implementation=implementation, final=final, outcome=outcome)


def main(config: Mapping[str, Any]) -> None:
    """Serve until the parent closes its end or a job makes this process useless."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this process
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")  # rather this process than the parent
    pipe, jobs = Pipe(config["events"]), _jobs(config["jobs"])
    torch_device: str = config["torch_device"]
    torch.set_num_threads(config["threads"])
    clock: Clock = HostClock()
    rotated_bytes = config["cache_bytes"]
    if torch_device != "cpu":
        torch.cuda.set_device(torch_device)
        clock, rotated_bytes = EventClock(torch_device, config["cache_bytes"]), 0
    allowance = _limit_memory(torch_device)
    start = _used_bytes(torch_device)
    _tidy()
    pipe.send("ready")
    while True:
        job = jobs.get()
        problem = registry.operator(job["operator"]).problem(job["hyperparameters"])
        run = ProblemRun(
            problem, clock, Policy(**job["policy"]), pipe, torch_device=torch_device, seed=job["seed"]
        )
        try:
            if job["timed"]:
                run.measure(job["implementations"], judged=job["judged"], cache_bytes=rotated_bytes)
            else:
                run.judge(job["implementations"])
                _make_room(torch_device)
        except ChildMustEnd:
            os._exit(1)
        del run
        _tidy()
        pipe.send("done", healthy=_used_bytes(torch_device) - start < LEAK_SHARE * allowance)


def _tidy() -> None:
    """Collect what problems left, and take the rest, all of torch's objects, out of later collections.

    A collection then takes less than a millisecond, not 200.
    """
    gc.collect()
    gc.freeze()


def _make_room(torch_device: str) -> None:
    """Give the GPU's memory back, of which others need some too."""
    if torch_device != "cpu":
        torch.cuda.empty_cache()


def _jobs(descriptor: int) -> queue.SimpleQueue[dict[str, Any]]:
    """Jobs as they arrive. A thread waits for them, so that this process ends with its parent."""
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        with open(descriptor, "rb") as lines:
            for line in lines:
                jobs.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return jobs


def _printed_bytes() -> int:
    """How long the log is: what comes after is of the stage that starts now."""
    with contextlib.suppress(OSError, ValueError):  # a candidate may have closed it
        sys.stdout.flush()
        return os.fstat(1).st_size
    return 0


def _limit_memory(torch_device: str) -> int:
    """Bytes that this process may still take. On a CPU a limit makes excess a MemoryError.

    Without it the system would kill some process, not necessarily this one. A GPU has its own limit,
    and its driver reserves more addresses than there is memory.
    """
    if torch_device != "cpu":
        return int(torch.cuda.mem_get_info()[0])
    information = Path("/proc/meminfo").read_text().split()
    available = int(information[information.index("MemAvailable:") + 1]) * 1024
    control_group = Path("/sys/fs/cgroup/memory.max")
    text = control_group.read_text().strip() if control_group.exists() else "max"
    allowance = int(MEMORY_SHARE * min(available, int(text) if text.isdigit() else available))
    limit = _used_bytes(torch_device) + allowance
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
    return allowance


def _used_bytes(torch_device: str) -> int:
    if torch_device != "cpu":
        return int(torch.cuda.memory_allocated())
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")
