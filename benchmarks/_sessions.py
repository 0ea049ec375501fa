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
Waiting = queue.SimpleQueue[Job]

LARGE_SHARE = 0.25  # of the processes: who takes large problems


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
    are worth nothing: the processes share the device. Problems that are `large` wait for a few of
    the processes: more of them at once might not fit into the device's memory, of which a process gives
    nothing back.
    """
    stop = threading.Event()
    small_ones: Waiting = queue.SimpleQueue()
    large_ones: Waiting = queue.SimpleQueue()
    done: queue.SimpleQueue[Done | None] = queue.SimpleQueue()
    for job in jobs:
        (large_ones if large(job[0]) else small_ones).put(job)

    def work(session: Session, index: int) -> None:
        takes_large = index < max(1, round(LARGE_SHARE * processes))
        try:
            for waiting in (large_ones, small_ones) if takes_large else (small_ones,):
                for problem, names in _until_empty(waiting):
                    if stop.is_set() or time.monotonic() > deadline:
                        return
                    done.put((problem, list(session.measure(problem, names))))
        finally:
            done.put(None)

    with ExitStack() as stack:
        sessions = [
            stack.enter_context(Session(torch_device, policy=policy, seed=seed)) for _ in range(processes)
        ]
        threads = stack.enter_context(ThreadPoolExecutor(processes))
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
