"""Measure problems in a child process that may die, hang or run out of memory without losing the rest."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import torch

from .. import registry
from ..contract import (
    GateResult,
    Implementation,
    MeasurementFailed,
    Memory,
    Problem,
    Record,
    Status,
    Timing,
)
from ..contract.record import COMPILED
from ..gate import REVISION
from . import neighbours
from .child import Child, ChildDied
from .environment import canonical_torch_device, current_environment
from .outcomes import Judged
from .policies import QUICK, Policy
from .probe import probe

DEFAULT_CACHE_BYTES = 2**25
LONGEST_TEXT = 500
STARTING = "starting"
UNSUPPORTED = "deciding whether it takes the problem"


class Session:
    """A device to measure on, and the child process that does it; a context manager.

    The child starts with the first problem and is kept while it is healthy. `threads` are those of torch
    in the child, as many as here when None. `worker` is a module whose `main` the child runs in place of this
    package's: one that knows further implementations. `seconds` counts where the time went, by stage. Raises
    UnknownDevice for a torch device that is not in this machine, and MeasurementFailed where nothing can be
    compiled for it and the policy's regime wants that.
    """

    def __init__(
        self,
        torch_device: str = "cpu",
        *,
        policy: Policy = QUICK,
        seed: int = 0,
        threads: int | None = None,
        worker: str | None = None,
    ) -> None:
        self.torch_device = canonical_torch_device(torch_device)
        self.policy = policy
        self.seed = seed
        self.device = probe(self.torch_device)
        self.environment = current_environment(self.torch_device)
        if policy.regime == COMPILED:
            neighbours.require_compiler(self.device)
        self.seconds: dict[str, float] = defaultdict(float)
        self._threads, self._worker = threads, worker
        self._child: Child | None = None
        self._changing = threading.Lock()  # of the two below: another thread may interrupt
        self._interrupted = False

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the child process ahead of the first problem. Raises MeasurementFailed where that fails."""
        begun = time.monotonic()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        self.seconds[STARTING] += time.monotonic() - begun

    def close(self) -> None:
        """End the child process. The session can be used again: a new one starts when it is needed."""
        with self._changing:
            if self._child is not None:
                self._child.close()
                self._child = None

    def interrupt(self) -> None:
        """End the child from another thread, for good: who waits for it goes on, and no other is started.

        A later `measure` or `judge` raises MeasurementFailed.
        """
        with self._changing:
            self._interrupted = True
            if self._child is not None:
                self._child.kill()

    def measure(
        self,
        problem: Problem,
        implementations: Sequence[str] | None = None,
        *,
        judged: Mapping[str, Judged] | None = None,
    ) -> Iterator[Record]:
        """Gate and time implementations (None: all) of a problem; one record each, in order of ending.

        A crash, a hang or a lack of memory costs the candidate that it happened to one record with that
        status, and the others are still measured. Who is among the `judged` of `judge` is timed only.
        Raises UnknownImplementation at once, and MeasurementFailed when the child process cannot be
        started.
        """
        chosen = self._chosen(problem, implementations)
        outcomes = self._outcomes(problem, chosen, judged or {}, timed=True)
        return (self._record(problem, chosen[name], outcome) for name, outcome in outcomes)

    def judge(
        self, problem: Problem, implementations: Sequence[str] | None = None
    ) -> tuple[dict[str, Judged], list[Record]]:
        """Gate implementations and count their bytes, but time nothing: what `measure` can go on from.

        Other processes may use the device meanwhile, also to judge. Who passed, by name, and the records
        of all others. Raises as `measure` does.
        """
        chosen = self._chosen(problem, implementations)
        passed: dict[str, Judged] = {}
        ended: list[Record] = []
        for name, outcome in self._outcomes(problem, chosen, {}, timed=False):
            if outcome["status"] == Status.OK:
                passed[name] = outcome
            else:
                ended.append(self._record(problem, chosen[name], outcome))
        return passed, ended

    def _chosen(self, problem: Problem, names: Sequence[str] | None) -> dict[str, Implementation]:
        known = registry.implementations(problem.operator)
        chosen = known if names is None else dict.fromkeys(names)
        return {name: registry.implementation(problem.operator, name) for name in chosen}

    def _outcomes(
        self,
        problem: Problem,
        chosen: Mapping[str, Implementation],
        judged: Mapping[str, Judged],
        *,
        timed: bool,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """What becomes of each, by name: the refusals first, then as the children say."""
        waiting: dict[str, None] = {}
        for implementation in chosen.values():
            refusal = self._refusal(problem, implementation)
            if refusal is None:
                waiting[implementation.name] = None
            else:
                yield implementation.name, refusal
        job = {
            "operator": problem.operator,
            "hyperparameters": dict(problem.as_dict),
            "judged": dict(judged),
            "timed": timed,
            "policy": asdict(self.policy),
            "seed": self.seed,
        }
        while waiting:
            for name, outcome in self._attempt(job | {"implementations": list(waiting)}):
                del waiting[name]
                yield name, outcome

    def _refusal(self, problem: Problem, implementation: Implementation) -> dict[str, Any] | None:
        """The outcome of a candidate that does not take the problem, decided without running it."""
        try:
            reason = implementation.unsupported(problem, self.device)
            if reason is None and self.policy.regime == COMPILED:
                reason = neighbours.refusal(implementation, problem)
        except Exception as error:
            reason = f"{type(error).__name__}: {error} (while {UNSUPPORTED})"
            return _ended(Status.CRASHED, reason)
        return None if reason is None else _ended(Status.UNSUPPORTED, str(reason) or "it gives no reason")

    def _attempt(self, job: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Outcomes until the child is done, dies or hangs; at least one, so that repeating ends."""
        progress = _Progress(job["implementations"], self.seconds)
        completed = False
        try:
            child = self._start()
            yield from self._follow(child, progress, job)
            completed = True
        except TimeoutError:
            reason = f"no answer for {self.policy.timeout_s:g} s (while {progress.stage})"
            yield from progress.blame(Status.TIMEOUT, reason)
        except ChildDied:
            self._check()
            words = child.last_words(progress.printed)
            doing = f"while {progress.stage}, after {progress.spent_s():.1f} s"
            reason = f"{child.how_it_ended()} ({doing})" + (f": {words}" if words else "")
            yield from progress.blame(Status.CRASHED, reason)
        finally:
            progress.spend()
            if not completed:
                self.close()

    def _follow(
        self, child: Child, progress: _Progress, job: dict[str, Any]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Final outcomes as the child reports them."""
        child.send(job)
        while True:
            event = child.receive(time.monotonic() + self.policy.timeout_s)
            if event["event"] == "stage":
                progress.begin(event)
            elif event["event"] == "done":
                if not event["healthy"]:
                    self.close()
                return
            elif event["final"]:
                progress.resolve(event["implementation"])
                yield event["implementation"], event["outcome"]
            else:
                progress.provisional[event["implementation"]] = event["outcome"]

    def _check(self) -> None:
        """Raise MeasurementFailed where the session was interrupted: then no candidate is to blame."""
        if self._interrupted:
            raise MeasurementFailed(f"Measuring on {self.torch_device} was interrupted.")

    def _start(self) -> Child:
        self._check()
        if self._child is not None:
            return self._child
        cache_bytes = self.device.l2_bytes or DEFAULT_CACHE_BYTES
        threads = self._threads or torch.get_num_threads()
        with self._changing:
            self._check()
            child = self._child = Child(
                self.torch_device, cache_bytes=cache_bytes, threads=threads, worker=self._worker
            )
        child.wait_until_ready()
        return child

    def _record(self, problem: Problem, implementation: Implementation, outcome: dict[str, Any]) -> Record:
        timings: dict[str, Any] = {
            kind: Timing(**{**values, "raw_ms": tuple(values["raw_ms"])})
            for kind, values in outcome.get("timings", {}).items()
        }
        return Record(
            problem=problem,
            implementation=implementation.name,
            implementation_version=implementation.version,
            device=self.device,
            environment=self.environment,
            policy=self.policy.name,
            status=Status(outcome["status"]),
            reason=_storable(outcome["reason"]),
            gate=GateResult(**{**outcome["gate"], "detail": _storable(outcome["gate"]["detail"])}),
            measured_at=datetime.now(UTC),
            memory=Memory(**outcome["memory"]) if "memory" in outcome else None,
            seed=self.seed,
            gate_revision=REVISION,
            regime=self.policy.regime,
            **timings,
        )


class _Progress:
    """What the child was last heard to do, and who still waits for an outcome."""

    def __init__(self, names: list[str], seconds: dict[str, float]) -> None:
        self.waiting = dict.fromkeys(names)
        self.provisional: dict[str, dict[str, Any]] = {}
        self.name: str | None = None
        self.stage = STARTING
        self.printed = 0  # bytes of the child's log when the stage began
        self._resolved_any = False
        self._seconds, self._began = seconds, time.monotonic()

    def begin(self, event: dict[str, Any]) -> None:
        """The child says what it starts to do."""
        self.spend()
        self.name, self.stage, self.printed = event["implementation"], event["stage"], event["printed"]

    def spend(self) -> None:
        """Count the time since the stage began, which ends."""
        self._seconds[self.stage] += self.spent_s()
        self._began = time.monotonic()

    def spent_s(self) -> float:
        """Seconds since the stage began."""
        return time.monotonic() - self._began

    def resolve(self, name: str) -> None:
        """A candidate has its final outcome."""
        del self.waiting[name]
        self._resolved_any = True

    def blame(self, status: Status, reason: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The outcomes that a dead or hanging child leaves.

        The candidate that was being worked on pays; one that only lacked its CUDA graphs is done
        without them. When it was work that all share, all pay. When the one that was being worked on
        has its outcome already, the child ended on purpose, and the rest goes to a new one.
        """
        guilty = [self.name] if self.name in self.waiting else []
        if self.name is None or (not guilty and not self._resolved_any):
            guilty = list(self.waiting)
        for name in guilty:
            if name is not None:
                self.resolve(name)
                yield name, self.provisional.get(name) or _ended(status, reason)


def _storable(text: str) -> str:
    """One line of printable characters: what candidates raise and print may hold anything.

    A database refuses NUL characters and lone surrogates, and others confuse a terminal.
    """
    characters = (
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text[:LONGEST_TEXT]
    )
    return "".join(characters)[:LONGEST_TEXT]


def _ended(status: Status, reason: str) -> dict[str, Any]:
    """The outcome of a candidate that got no measurement."""
    return {
        "status": status.value,
        "reason": reason,
        "gate": asdict(GateResult.not_reached(reason)),
    }
