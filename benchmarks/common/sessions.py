"""Several measuring processes at once on each of some devices: for what takes long without being timed."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

from kernel_selector.kernels.contract import Problem, Record
from kernel_selector.kernels.measure import Policy, Session

Job = tuple[Problem, Sequence[str]]  # with the implementations to run
Done = tuple[Problem, list[Record]]
Waiting = queue.SimpleQueue[Job]


def measure_all(
    jobs: Sequence[Job],
    torch_devices: Sequence[str],
    *,
    policy: Policy,
    processes: int,
    deadline: float,
    seed: int = 0,
    lane: Callable[[Problem], int] = lambda _: 0,
) -> Iterator[Done]:
    """Each job's records as they come, not in order; no job starts after `deadline` (time.monotonic).

    Each of so many `processes` a device takes one job after the other, and is replaced when one of them
    kills it. Their times are worth nothing: the processes share the device. A problem of `lane` 0 goes to any
    process, one of lane n to the n-th of the first device alone: two large ones at once might not fit into
    the device's memory, of which a process gives nothing back.
    """
    stop = threading.Event()
    lanes: dict[int, Waiting] = {0: queue.SimpleQueue()}
    done: queue.SimpleQueue[Done | None] = queue.SimpleQueue()
    for job in jobs:
        lanes.setdefault(lane(job[0]), queue.SimpleQueue()).put(job)

    def work(session: Session, index: int) -> None:
        own = [waiting for number, waiting in lanes.items() if number and (number - 1) % processes == index]
        try:
            for waiting in (*own, lanes[0]):
                for problem, names in _until_empty(waiting):
                    if stop.is_set() or time.monotonic() > deadline:
                        return
                    done.put((problem, list(session.measure(problem, names))))
        finally:
            done.put(None)

    with ExitStack() as stack:
        sessions = [
            stack.enter_context(Session(torch_device, policy=policy, seed=seed))
            for torch_device in torch_devices
            for _ in range(processes)
        ]
        threads = stack.enter_context(ThreadPoolExecutor(len(sessions)))
        stack.callback(stop.set)  # first of all at the end: then each thread ends with its job
        working = [threads.submit(work, session, index) for index, session in enumerate(sessions)]
        for _ in working:
            yield from iter(done.get, None)
        for worker in working:
            worker.result()


def _until_empty(waiting: Waiting) -> Iterator[Job]:
    with suppress(queue.Empty):
        while True:
            yield waiting.get_nowait()
