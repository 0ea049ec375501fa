"""All stages of one problem in the child process: gate, memory, time, CUDA graphs; candidate by candidate."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import nn

from .. import registry
from ..contract import GateResult, Inputs, Memory, Problem, Status
from ..contract.record import COMPILED
from ..gate import Gate
from ..runtime.building import without_draws
from .clock import Clock
from .graphs import capture
from .memory import measure_memory
from .neighbours import amid_neighbours
from .outcomes import Judged, failure, outcome, status_of
from .policies import Policy
from .timing import Contestant, interleave, timing
from .workload import Run, Workload

REFERENCE = "computing the reference"
BUILDING = "building"


class Reporter(Protocol):
    """Receiver of progress reports: the pipe to the parent process."""

    def stage(self, implementation: str | None, stage: str) -> None:
        """Report that a candidate, or None for what all share, is about to start a stage."""
        ...

    def outcome(self, implementation: str, outcome: dict[str, Any], *, final: bool = True) -> None:
        """Report a candidate's outcome; not final when only its CUDA graphs are outstanding."""
        ...


class ChildMustEnd(Exception):
    """The child process can measure no more: memory ran out, or its GPU context is broken."""


@dataclass
class Timed:
    """A candidate that passed the gate, and its timings so far: the whole run's eager ones stand last."""

    name: str
    module: nn.Module
    gate: GateResult
    memory: Memory
    timings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Shared:
    """What the candidates of a problem have in common; no gate where all were judged elsewhere."""

    gate: Gate | None
    note: str
    inputs: Inputs
    workload: Workload


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

    def measure(self, names: list[str], *, judged: Mapping[str, Judged], cache_bytes: int) -> None:
        """Judge and time; who is among the `judged` is timed only.

        Raises ChildMustEnd when a new process has to go on with the rest.
        """
        shared = self._share(names, gated=not judged.keys() >= set(names), cache_bytes=cache_bytes)
        if shared is None:
            return
        prepared = [
            self._load(name, judged[name], shared) if name in judged else self._prepare(name, shared)
            for name in names
        ]
        candidates = [candidate for candidate in prepared if candidate is not None]
        workload = shared.workload
        del shared  # the float64 results make room
        self._clock.apart = self._policy.apart
        with workload.grad_mode():
            candidates = self._time(candidates, workload)
            if self._torch_device != "cpu" and self._policy.graphs:
                self._time_graphs(candidates, workload)
        for candidate in candidates:
            self._succeed(candidate)

    def judge(self, names: list[str]) -> None:
        """Gate and memory alone, which other processes on the device do not disturb; else as `measure`."""
        shared = self._share(names, gated=True, cache_bytes=0)
        if shared is None:
            return
        for name in names:
            candidate = self._prepare(name, shared)
            if candidate is not None:
                self._succeed(candidate)

    def _share(self, names: list[str], *, gated: bool, cache_bytes: int) -> _Shared | None:
        """What all candidates need; None where that failed, for which all of them pay."""
        self._report.stage(None, REFERENCE)
        try:
            gate, note = self._gate() if gated else (None, "")
            inputs = gate.inputs if gate and not note else self._inputs()
            return _Shared(gate, note, inputs, Workload(self._problem, inputs, cache_bytes=cache_bytes))
        except BaseException as error:
            for name in names:
                self._report.outcome(name, failure(error, REFERENCE))
            self._go_on_after(error)
            return None

    def _gate(self) -> tuple[Gate, str]:
        """The gate, and what its results have to say where it judges fewer time steps in full."""
        seq = self._policy.gate_seq
        whole: Any = self._problem.as_dict.get("seq", 0)
        if seq is None or whole <= seq:
            return Gate(self._problem, self._torch_device, self._seed), ""
        values = self._problem.as_dict
        # queries of as many keys stay so: for causal masks of others there are other refusals
        same = {name: seq for name in ("seq", "kv_seq") if values.get(name) == whole}
        shorter = registry.operator(self._problem.operator).problem({**values, **same})
        gate = Gate(shorter, self._torch_device, self._seed, whole=self._problem)
        return gate, f"; judged at seq={seq}, and at all {whole} steps against torch's own"

    def _inputs(self) -> Inputs:
        operator = registry.operator(self._problem.operator)
        return operator.make_inputs(self._problem, self._torch_device, self._seed)

    def _build(self, name: str) -> nn.Module:
        self._report.stage(name, BUILDING)
        with without_draws():
            module = registry.implementation(self._problem.operator, name).build(self._problem)
            return amid_neighbours(module) if self._policy.regime == COMPILED else module

    def _load(self, name: str, judged: Judged, shared: _Shared) -> Timed | None:
        """Build a candidate that was judged elsewhere; None when that is the end of it."""
        gate = GateResult(**judged["gate"])
        try:
            module = self._build(name)
            module.to(self._torch_device)
            module.load_state_dict(shared.inputs.state_dict)
            module.train(shared.workload.training)
            return Timed(name, module, gate, Memory(**judged["memory"]))
        except BaseException as error:
            self._report.outcome(name, failure(error, BUILDING, gate))
            self._go_on_after(error)
            return None

    def _prepare(self, name: str, shared: _Shared) -> Timed | None:
        """Build, judge and weigh one candidate; None when that is the end of it."""
        stage, result, workload = BUILDING, None, shared.workload
        assert shared.gate is not None
        try:
            module = self._build(name)
            stage = "the correctness gate"
            self._report.stage(name, stage)
            result = shared.gate.check(module)
            result = replace(result, detail=result.detail + shared.note)
            self._synchronize()
            if not result.passed:
                self._report.outcome(name, outcome(Status.INCORRECT, result.detail, result))
                return None
            stage = "measuring memory"
            self._report.stage(name, stage)
            with workload.grad_mode():
                static_bytes = getattr(module, "static_bytes", 0)
                forgotten = workload.forgotten(module) if workload.training else None
                memory = measure_memory(
                    workload.whole(module), self._torch_device, static_bytes, forgotten=forgotten
                )
            return Timed(name, module, result, memory)
        except BaseException as error:
            self._report.outcome(name, failure(error, stage, result))
            self._go_on_after(error)
            return None

    def _time(self, candidates: list[Timed], workload: Workload) -> list[Timed]:
        """Eager times, interleaved. Returns the candidates that got through."""
        contestants = [Contestant(one.name, workload.whole(one.module)) for one in candidates]
        gates = {candidate.name: candidate.gate for candidate in candidates}

        def failed(name: str, error: BaseException) -> None:
            self._report.outcome(name, failure(error, "timing", gates[name]))
            self._go_on_after(error)

        with torch.autograd.set_multithreading_enabled(not self._policy.calling_thread):
            self._interleave(contestants, "timing", failed, self._policy)
        survivors = []
        for candidate, contestant in zip(candidates, contestants, strict=True):
            if contestant.failed:
                continue
            candidate.timings["forward"] = timing([laps[0] for laps in contestant.laps])
            if workload.training:
                candidate.timings["forward_backward"] = timing([laps[-1] for laps in contestant.laps])
            survivors.append(candidate)
        return survivors

    def _time_graphs(self, candidates: list[Timed], workload: Workload) -> None:
        """CUDA-graph times, interleaved. A candidate that cannot be captured is simply without them."""
        contestants: dict[tuple[str, str], Contestant] = {}
        for candidate in candidates:
            self._succeed(candidate, final=False)
        for candidate in not_far(self._policy.graph_far, candidates):
            runs = {}
            if self._policy.graph_forward or not workload.training:
                runs["graph_forward"] = workload.forward(candidate.module)
            if workload.training:
                runs["graph_forward_backward"] = workload.whole(candidate.module)
            for kind, run in runs.items():
                replay = self._capture(candidate.name, run)
                if replay is not None:
                    contestants[candidate.name, kind] = Contestant(candidate.name, replay)
        captured, stage = list(contestants.values()), "timing its CUDA graph"
        # forward passes beside whole runs: no one of them is the best of all
        alone = replace(self._policy, close_samples=0, far=None)
        self._interleave(captured, stage, self._go_on_without_graph, alone)
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
        self,
        contestants: list[Contestant],
        stage: str,
        failed: Callable[[str, BaseException], None],
        policy: Policy,
    ) -> None:
        def before(name: str) -> None:
            self._report.stage(name, stage)

        interleave(contestants, self._clock, policy, seed=self._seed, before=before, failed=failed)

    def _succeed(self, candidate: Timed, *, final: bool = True) -> None:
        result = outcome(Status.OK, "", candidate.gate)
        result["memory"] = asdict(candidate.memory)
        result["timings"] = {kind: asdict(one) for kind, one in candidate.timings.items()}
        self._report.outcome(candidate.name, result, final=final)

    def _go_on_after(self, error: BaseException) -> None:
        """Returns when this process is still good for other candidates; else raises ChildMustEnd."""
        # what a candidate that ran out of memory still holds would make the next ones fail
        if status_of(error) is Status.OUT_OF_MEMORY or (self._torch_device != "cpu" and _broken_context()):
            raise ChildMustEnd from error

    def _synchronize(self) -> None:
        """Errors of a GPU arrive late: have them before the next candidate starts."""
        if self._torch_device != "cpu":
            torch.cuda.synchronize()


def not_far(far: float | None, candidates: list[Timed]) -> list[Timed]:
    """The candidates whose eager time is within `far` times the best one's; None: all."""
    if far is None or not candidates:
        return candidates
    times_ms = [list(one.timings.values())[-1].p50_ms for one in candidates]
    return [one for one, time_ms in zip(candidates, times_ms, strict=True) if time_ms <= far * min(times_ms)]


def _broken_context() -> bool:
    """Whether the GPU answers nothing any more, as after an illegal address."""
    try:
        torch.empty(1, device="cuda").uniform_()  # a failed capture may leave the generator in it
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
