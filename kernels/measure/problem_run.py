"""All stages of one problem in the child process: gate, memory, time, CUDA graphs; candidate by candidate."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import nn

from .. import registry
from ..contract import GateResult, Inputs, Memory, Problem, Status, UnsupportedProblem
from ..gate import Gate
from .clock import Clock
from .graphs import capture
from .memory import measure_memory
from .policies import Policy
from .timing import Contestant, interleave, timing
from .workload import Run, Workload

REFERENCE = "computing the reference"
OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "bad_alloc",
    "ALLOC_FAILED",
    "Storage size calculation overflowed",
    "invalid configuration: size",
)


class Reporter(Protocol):
    """Where progress goes: the pipe to the parent process."""

    def stage(self, implementation: str | None, stage: str) -> None:
        """A candidate, or None for what all share, is about to start a stage."""
        ...

    def outcome(self, implementation: str, outcome: dict[str, Any], *, final: bool = True) -> None:
        """What became of a candidate; not final when only its CUDA graphs are outstanding."""
        ...


class ChildMustEnd(Exception):
    """This process can measure no more: memory ran out, or its GPU context is broken."""


@dataclass
class _Candidate:
    name: str
    module: nn.Module
    gate: GateResult
    memory: Memory
    timings: dict[str, Any] = field(default_factory=dict)


class ProblemRun:
    """Measures the candidates of one problem and reports each one's outcome."""

    def __init__(
        self,
        problem: Problem,
        clock: Clock,
        policy: Policy,
        report: Reporter,
        *,
        torch_device: str,
        seed: int,
    ) -> None:
        self._problem = problem
        self._clock = clock
        self._policy = policy
        self._report = report
        self._torch_device = torch_device
        self._seed = seed

    def measure(self, names: list[str], *, cache_bytes: int) -> None:
        """Raises ChildMustEnd when a new process has to go on with the rest."""
        self._report.stage(None, REFERENCE)
        try:
            gate, note = self._gate()
            inputs = self._inputs() if note else gate.inputs
            workload = Workload(self._problem, inputs, cache_bytes=cache_bytes)
        except BaseException as error:
            for name in names:
                self._report.outcome(name, failure(error, REFERENCE))
            self._go_on_after(error)
            return
        prepared = [self._prepare(name, gate, workload, note) for name in names]
        candidates = [candidate for candidate in prepared if candidate is not None]
        del gate, inputs  # the float64 results make room
        with workload.grad_mode():
            candidates = self._time(candidates, workload)
            if self._torch_device != "cpu" and self._policy.graphs:
                self._time_graphs(candidates, workload)
        for candidate in candidates:
            self._succeed(candidate)

    def _gate(self) -> tuple[Gate, str]:
        """The gate, and what its results have to say where it judges fewer time steps than are timed."""
        seq = self._policy.gate_seq
        whole: Any = self._problem.as_dict.get("seq", 0)
        if seq is None or whole <= seq:
            return Gate(self._problem, self._torch_device, self._seed), ""
        shorter = registry.operator(self._problem.operator).problem({**self._problem.as_dict, "seq": seq})
        return Gate(shorter, self._torch_device, self._seed), f"; judged at seq={seq}"

    def _inputs(self) -> Inputs:
        operator = registry.operator(self._problem.operator)
        return operator.make_inputs(self._problem, self._torch_device, self._seed)

    def _prepare(self, name: str, gate: Gate, workload: Workload, note: str) -> _Candidate | None:
        """Build, judge and weigh one candidate; None when that is the end of it."""
        stage, result = "building", None
        try:
            self._report.stage(name, stage)
            module = registry.implementation(self._problem.operator, name).build(self._problem)
            stage = "the correctness gate"
            self._report.stage(name, stage)
            result = gate.check(module)
            result = replace(result, detail=result.detail + note)
            self._synchronize()
            if not result.passed:
                self._report.outcome(name, _outcome(Status.INCORRECT, result.detail, result))
                return None
            stage = "measuring memory"
            self._report.stage(name, stage)
            with workload.grad_mode():
                static_bytes = getattr(module, "static_bytes", 0)
                forgotten = workload.forgotten(module) if workload.training else None
                memory = measure_memory(
                    workload.whole(module), self._torch_device, static_bytes, forgotten=forgotten
                )
            return _Candidate(name, module, result, memory)
        except BaseException as error:
            self._report.outcome(name, failure(error, stage, result))
            self._go_on_after(error)
            return None

    def _time(self, candidates: list[_Candidate], workload: Workload) -> list[_Candidate]:
        """Eager times, interleaved. Returns the candidates that got through."""
        contestants = [Contestant(one.name, workload.whole(one.module)) for one in candidates]
        gates = {candidate.name: candidate.gate for candidate in candidates}

        def failed(name: str, error: BaseException) -> None:
            self._report.outcome(name, failure(error, "timing", gates[name]))
            self._go_on_after(error)

        self._interleave(contestants, "timing", failed)
        survivors = []
        for candidate, contestant in zip(candidates, contestants, strict=True):
            if contestant.failed:
                continue
            candidate.timings["forward"] = timing([laps[0] for laps in contestant.laps])
            if workload.training:
                candidate.timings["forward_backward"] = timing([laps[-1] for laps in contestant.laps])
            survivors.append(candidate)
        return survivors

    def _time_graphs(self, candidates: list[_Candidate], workload: Workload) -> None:
        """CUDA-graph times, interleaved. A candidate that cannot be captured is simply without them."""
        contestants: dict[tuple[str, str], Contestant] = {}
        for candidate in candidates:
            self._succeed(candidate, final=False)
        for candidate in candidates:
            runs = {}
            if self._policy.graph_forward or not workload.training:
                runs["graph_forward"] = workload.forward(candidate.module)
            if workload.training:
                runs["graph_forward_backward"] = workload.whole(candidate.module)
            for kind, run in runs.items():
                replay = self._capture(candidate.name, run)
                if replay is not None:
                    contestants[candidate.name, kind] = Contestant(candidate.name, replay)
        self._interleave(list(contestants.values()), "timing its CUDA graph", self._go_on_without_graph)
        for candidate in candidates:
            for kind in ("graph_forward", "graph_forward_backward"):
                contestant = contestants.get((candidate.name, kind))
                if contestant is not None and not contestant.failed:
                    candidate.timings[kind] = timing([laps[-1] for laps in contestant.laps])

    def _capture(self, name: str, run: Run) -> Run | None:
        self._report.stage(name, "capturing a CUDA graph")
        try:
            return capture(run)
        except BaseException as error:
            self._go_on_without_graph(name, error)
            return None

    def _go_on_without_graph(self, _name: str, error: BaseException) -> None:
        if _broken_context():
            raise ChildMustEnd from error
        gc.collect()

    def _interleave(
        self, contestants: list[Contestant], stage: str, failed: Callable[[str, BaseException], None]
    ) -> None:
        def before(name: str) -> None:
            self._report.stage(name, stage)

        interleave(contestants, self._clock, self._policy, seed=self._seed, before=before, failed=failed)

    def _succeed(self, candidate: _Candidate, *, final: bool = True) -> None:
        outcome = _outcome(Status.OK, "", candidate.gate)
        outcome["memory"] = asdict(candidate.memory)
        outcome["timings"] = {kind: asdict(one) for kind, one in candidate.timings.items()}
        self._report.outcome(candidate.name, outcome, final=final)

    def _go_on_after(self, error: BaseException) -> None:
        """Returns when this process is still good for other candidates; else raises ChildMustEnd."""
        if _status(error) is Status.OUT_OF_MEMORY:
            # what the failed candidate still holds would make the next ones fail
            raise ChildMustEnd from error
        if self._torch_device != "cpu" and _broken_context():
            raise ChildMustEnd from error

    def _synchronize(self) -> None:
        """Errors of a GPU arrive late: have them before the next candidate starts."""
        if self._torch_device != "cpu":
            torch.cuda.synchronize()


def failure(error: BaseException, stage: str, gate: GateResult | None = None) -> dict[str, Any]:
    """The outcome of a candidate that raised."""
    lines = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0]}".removesuffix(": ")
    return _outcome(_status(error), f"{text} (while {_doing(stage)})", gate)


def _doing(stage: str) -> str:
    return stage if stage.split()[0].endswith("ing") else f"in {stage}"


def _outcome(status: Status, reason: str, gate: GateResult | None) -> dict[str, Any]:
    result = gate or GateResult.not_reached(reason)
    return {"status": status.value, "reason": reason, "gate": asdict(result)}


def _status(error: BaseException) -> Status:
    if isinstance(error, UnsupportedProblem):
        return Status.UNSUPPORTED
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return Status.OUT_OF_MEMORY
    text = str(error)
    if isinstance(error, RuntimeError) and any(words in text for words in OUT_OF_MEMORY_TEXTS):
        return Status.OUT_OF_MEMORY
    return Status.CRASHED


def _broken_context() -> bool:
    """Whether the GPU context answers nothing any more, as after an illegal address."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
