"""Several processes on one or more devices that work off one list of problems.

In rounds: first many processes a device judge: they compile, run the correctness gate and count bytes, which
takes most of the time and does not mind company. Then one process a device, alone on it, times who passed.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

from ..contract import MeasurementFailed, Record, Status
from .jobs import Job
from .outcomes import Judged
from .session import Session

JUDGING_SHARE = 0.5  # of what is left of the budget, at most
LEAST_S = 60.0  # of the budget, for judges to be started: that takes 20 s
ROUND_S = 120.0  # of judging, before what passed is timed: no more is lost where a sweep is interrupted
JUDGING_PATIENCE = 2  # times the policy's timeout: many compilers share the cores
MOST_JUDGES = 14  # processes a device
MOST_HANGS = 3  # of an implementation: each costs a timeout
# how a judge's candidate ended that need not try again alone on the device
FINAL = (Status.INCORRECT, Status.UNSUPPORTED, Status.TIMEOUT)

Worker = Callable[[Job], Iterator[Record]]
Done = tuple[Job, Record | None]  # None: nothing more comes of the job


@dataclass(frozen=True)
class Step:
    """A record of a job; or, without one, that the job was `judged`, or has been measured to its end."""

    job: Job
    record: Record | None
    judged: bool


@dataclass(kw_only=True)
class Fleet:
    """The sessions that time, one a device, and `judges` processes a device before them.

    No problem is started that is not expected to end before `end` (of time.monotonic). `judging_seconds` and
    `timing_seconds` count where the time of the processes that judge and of those that time went, by stage;
    `hangs` counts how often an implementation did not answer, and `longest_s` is what judging a job took at
    most: no round begins in less than twice that before the end.
    """

    sessions: Sequence[Session]
    judges: int = 0
    end: float = math.inf
    judging_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    timing_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    hangs: Counter[tuple[str, str]] = field(default_factory=Counter)
    longest_s: float = 0.0

    def run(self, jobs: Sequence[Job]) -> Generator[Step]:
        """The records of the jobs as they come. A job whose end is not among them was left out.

        An implementation that hung MOST_HANGS times is not run again. A judge that cannot be started again,
        for want of memory beside the others, leaves its jobs to who times. Raises MeasurementFailed when a
        process that times cannot be started.
        """
        waiting = list(jobs)
        while waiting:
            begun = yield from self._round(waiting)
            waiting = [job for job in waiting if job not in begun]
        _add(self.sessions, self.timing_seconds)

    def _round(self, jobs: Sequence[Job]) -> Generator[Step, None, Set[Job]]:
        """Judge some of the jobs and time these; all of them where none is judged. Returns which."""
        judged: dict[Job, dict[str, Judged]] = {}
        ended: dict[Job, set[str]] = defaultdict(set)
        begun = set[Job]()
        with ThreadPoolExecutor(len(self.sessions)) as starting:
            if self.judges:  # those that time begin their first problem at once then, and not by starting
                for session in self.sessions:
                    starting.submit(session.start)
            for job, record in self._judged(jobs, judged, begun):
                if record is not None:
                    ended[job].add(record.implementation)
                yield Step(job, record, judged=True)
        if not judged:  # judges that cannot start would not in the next round either
            begun = set(jobs)

        def time_in(session: Session) -> Worker:
            def worker(job: Job) -> Iterator[Record]:
                waiting = [name for name in self._patient(job) if name not in ended[job]]
                return session.measure(job.problem, waiting, judged=judged.get(job))

            return worker

        order = sorted((job for job in jobs if job in begun), key=lambda job: job not in judged)
        for job, record in self._shared(order, self.sessions, time_in, self.end):
            yield Step(job, record, judged=False)
        return begun

    def _judged(
        self, jobs: Sequence[Job], judged: dict[Job, dict[str, Judged]], begun: set[Job]
    ) -> Iterator[Done]:
        """Judge as many jobs as a round allows, which become `begun`; fills `judged`."""
        start = time.monotonic()
        if not self.judges or self.end - start < max(LEAST_S, 2 * self.longest_s):
            return

        def judge_in(session: Session) -> Worker:
            def worker(job: Job) -> Iterator[Record]:
                begun.add(job)
                asked = time.monotonic()
                try:
                    passed, ended = session.judge(job.problem, self._patient(job))
                except MeasurementFailed as error:
                    raise _Ended from error
                self.longest_s = max(self.longest_s, time.monotonic() - asked)
                judged[job] = passed
                return (record for record in ended if record.status in FINAL)

            return worker

        threads = max(1, len(os.sched_getaffinity(0)) // (self.judges * len(self.sessions)))
        with ExitStack() as stack:
            judges = [
                stack.enter_context(Session(one.torch_device, policy=policy, seed=one.seed, threads=threads))
                for one in self.sessions
                for policy in [replace(one.policy, timeout_s=JUDGING_PATIENCE * one.policy.timeout_s)]
                for _ in range(self.judges)
            ]
            most_s = min(ROUND_S, JUDGING_SHARE * (self.end - start))
            yield from self._shared(jobs, judges[: len(jobs)], judge_in, start + most_s)
            _add(judges, self.judging_seconds)

    def given_up(self) -> list[tuple[str, str]]:
        """Operator and name of the implementations that hung too often."""
        return sorted(who for who, count in self.hangs.items() if count >= MOST_HANGS)

    def _patient(self, job: Job) -> list[str]:
        """The implementations of a job without those that hung too often."""
        operator = job.problem.operator
        return [name for name in job.implementations if self.hangs[operator, name] < MOST_HANGS]

    def _shared(
        self,
        jobs: Sequence[Job],
        sessions: Sequence[Session],
        works: Callable[[Session], Worker],
        end: float,
    ) -> Iterator[Done]:
        """Each session takes one job after the other; what they give as it comes."""
        share = _Share(jobs, end, self.hangs)
        with ThreadPoolExecutor(len(sessions) or 1) as threads:
            working = [threads.submit(share.work, works(session)) for session in sessions]
            try:
                for _ in working:
                    yield from iter(share.done.get, None)
            except BaseException:  # nobody listens any more: no process may keep its thread waiting
                share.stop.set()
                for session in sessions:
                    session.interrupt()
                raise
            for finished in working:
                finished.result()


def _add(sessions: Sequence[Session], seconds: dict[str, float]) -> None:
    """Add what sessions spent on each stage."""
    for session in sessions:
        for stage, spent in session.seconds.items():
            seconds[stage] += spent


class _Ended(Exception):
    """A process that takes no further job, while the others go on."""


class _Share:
    """Jobs that several threads take from, and what they give as it comes: None from each at its end."""

    def __init__(self, jobs: Sequence[Job], end: float, hangs: Counter[tuple[str, str]]) -> None:
        self.done: queue.SimpleQueue[Done | None] = queue.SimpleQueue()
        self.stop = threading.Event()
        self._waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._end, self._hangs, self._counting = end, hangs, threading.Lock()
        for job in jobs:
            self._waiting.put(job)

    def work(self, worker: Worker) -> None:
        """Take one job after the other, while there are any that will end in time."""
        start, count = time.monotonic(), 0
        try:
            with suppress(queue.Empty, _Ended):
                while not self.stop.is_set():
                    now = time.monotonic()
                    if now + (now - start) / max(count, 1) > self._end:
                        return
                    self._measure(self._waiting.get_nowait(), worker)
                    count += 1
        finally:
            self.done.put(None)

    def _measure(self, job: Job, worker: Worker) -> None:
        for record in worker(job):
            if self.stop.is_set():
                return
            if record.status is Status.TIMEOUT:
                with self._counting:
                    self._hangs[job.problem.operator, record.implementation] += 1
            self.done.put((job, record))
        self.done.put((job, None))


def default_judges(torch_devices: Sequence[str]) -> int:
    """Processes a device that judge: one for each core but two of its share; none on a CPU."""
    if "cpu" in torch_devices:
        return 0
    return min(MOST_JUDGES, max(0, len(os.sched_getaffinity(0)) // len(torch_devices) - 2))
