"""Several measuring processes at once on one device: for what takes long without being timed."""

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


def measure_all(
    jobs: Sequence[Job],
    torch_device: str,
    *,
    policy: Policy,
    processes: int,
    deadline: float,
    seed: int = 0,
    large: Callable[[Problem], bool] = lambda _: False,
) -> Iterator[Done]:
    """Each job's records as they come, not in order; no job starts after `deadline` (time.monotonic).

    Each process takes one job after the other, and is replaced when one of them kills it. Their times
    are worth nothing: the processes share the device. Problems that are `large` wait for one process,
    since two of them might not fit into the device's memory, of which a process gives nothing back.
    """
    stop = threading.Event()
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    by_first: queue.SimpleQueue[Job] = queue.SimpleQueue()
    done: queue.SimpleQueue[Done | None] = queue.SimpleQueue()
    for job in jobs:
        (by_first if large(job[0]) else waiting).put(job)

    def work(session: Session, queues: Sequence[queue.SimpleQueue[Job]]) -> None:
        try:
            for one in queues:
                with suppress(queue.Empty):
                    while not stop.is_set() and time.monotonic() < deadline:
                        problem, names = one.get_nowait()
                        done.put((problem, list(session.measure(problem, names))))
        finally:
            done.put(None)

    with ExitStack() as stack:
        sessions = [
            stack.enter_context(Session(torch_device, policy=policy, seed=seed)) for _ in range(processes)
        ]
        threads = stack.enter_context(ThreadPoolExecutor(processes))
        stack.callback(stop.set)  # first of all at the end: then each thread ends with its job
        others = [threads.submit(work, session, [waiting]) for session in sessions[1:]]
        working = [threads.submit(work, sessions[0], [by_first, waiting]), *others]
        for _ in working:
            yield from iter(done.get, None)
        for worker in working:
            worker.result()
