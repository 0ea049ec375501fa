"""Progress of a sweep on stderr, and its report at the end."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median

from ..contract import Record, Status
from .jobs import Job
from .parallel import Fleet, Step

MANY = 20  # problems from which on only what failed has a line of its own
JUDGED_EVERY_S = 10.0


def say(text: str) -> None:
    """A line for whoever watches."""
    print(text, file=sys.stderr, flush=True)


class Log:
    """Counts what became of the candidates, and of which problems the end was seen."""

    def __init__(self, jobs: Sequence[Job], *, end: float) -> None:
        self._count, self._end = len(jobs), end
        self._start = self._last = time.monotonic()
        self._judging_s = 0.0  # until steps of judging; the rest is timing
        self._records: dict[Job, list[Record]] = defaultdict(list)
        self._statuses: Counter[str] = Counter()
        self._spreads: list[float] = []
        self._judged = self._timed = 0
        self._spoke = self._start

    def show(self, step: Step) -> None:
        """A line for each problem that ended, and now and then for those that were judged."""
        now, before = time.monotonic(), self._last
        self._last = now
        if step.judged:
            self._judging_s += now - before
        if step.record is not None:
            self._records[step.job].append(step.record)
            self._statuses[step.record.status.value] += 1
            if total := step.record.total:
                self._spreads.append(total.spread)
        elif step.judged:
            self._judged += 1
            if now - self._spoke > JUDGED_EVERY_S:
                self._spoke = now
                say(f"[judged {self._judged}/{self._count}] {step.job.problem.key}")
        else:
            self._timed += 1
            records = self._records.pop(step.job, [])
            counts = Counter(record.status.value for record in records)
            say(f"[{self._timed}/{self._count}{self._left()}] {step.job.problem.key}: {_tally(counts)}")
            for record in records:
                if self._count <= MANY or record.status not in (Status.OK, Status.UNSUPPORTED):
                    say(f"    {_summary(record)}")

    def _left(self) -> str:
        timing_s = self._last - self._start - self._judging_s
        left = self._count - self._timed
        seconds = timing_s / self._timed * left
        if self._judged:  # who is timed without a judge is not judged any more
            seconds += self._judging_s / self._judged * min(left, self._count - self._judged)
        seconds = min(seconds, max(0.0, self._end - self._last))
        return f", about {seconds:.0f} s left" if self._timed < self._count else ""

    def finish(self, fleet: Fleet) -> None:
        """The report: what was left out, who was given up, where the time went."""
        seconds = time.monotonic() - self._start
        if left := self._count - self._timed:
            say(f"The budget is spent: {left} problems are left.")
        for operator, name in fleet.given_up():
            say(f"{operator} {name} hung {fleet.hangs[operator, name]} times, and was not run any more.")
        say(f"Measured in {seconds:.1f} s: {_tally(self._statuses)}.")
        if self._spreads:
            say(f"The runs of a candidate spread by {median(self._spreads):.1%}, more on a busy host.")
        done = sum(self._statuses.values()) - self._statuses[Status.UNSUPPORTED.value]
        judged = f", of which {self._judging_s:.1f} s to judge them" if self._judged else ""
        say(f"{done / seconds:.2f} candidates a second{judged}; by stage, in seconds of all processes:")
        for doing, spent in (("judging", fleet.judging_seconds), ("timing", fleet.timing_seconds)):
            stages = sorted(spent.items(), key=lambda pair: -pair[1])
            if stages:
                say(f"    {doing}: " + ", ".join(f"{stage} {each:.1f}" for stage, each in stages))


def _tally(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "nothing"


def _summary(record: Record) -> str:
    total = record.total
    text = f"{total.p50_ms:.4g} ms ({total.samples} samples)" if total else record.reason
    return f"{record.implementation:24} {record.status.value:14} {text}"
