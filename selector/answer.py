"""From a question and what is known to a choice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import (
    Environment,
    Implementation,
    Problem,
    UnsupportedProblem,
)
from kernel_selector.kernels.contract.errors import shorten

from .choice import Candidate, Choice
from .devices import Resolved, resolve
from .errors import InvalidRequest
from .policy import Decision, Question, combine, decide
from .units import parse_bytes

if TYPE_CHECKING:
    from .evidence import Tier
    from .knowledge import Knowledge

DEFAULT_OPERATOR = "lstm"
OBJECTIVES = ("time", "memory")


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of a question, parsed."""

    problem: Problem
    where: Resolved
    limit_bytes: int | None
    objective: str
    override: str | None
    operator_assumed: bool


def parse(
    knowledge: Knowledge,
    operator: str | None,
    device: object,
    memory: str | int | None,
    objective: str,
    override: str | None,
    hyperparameters: Mapping[str, object],
) -> Request:
    """The parsed arguments. Raises the errors that `selector.choose` lists."""
    problem = registry.operator(DEFAULT_OPERATOR if operator is None else operator).problem(hyperparameters)
    if objective not in OBJECTIVES:
        raise InvalidRequest(f"objective={shorten(objective)}: expected one of {', '.join(OBJECTIVES)}.")
    if override is not None:
        registry.implementation(problem.operator, override)
    return Request(
        problem=problem,
        limit_bytes=None if memory is None else parse_bytes(memory),
        where=resolve(device, knowledge.devices),
        objective=objective,
        override=override,
        operator_assumed=operator is None,
    )


def answer(knowledge: Knowledge, request: Request) -> Choice:
    """The choice for a request. Raises UnsupportedProblem, NothingFits, ModelVersionMismatch."""
    problem, device = request.problem, request.where.device
    operator = registry.operator(problem.operator)
    accepted, refused = registry.candidates(problem, device)
    _check_override(request, refused)
    evidence = knowledge.evidence(problem.operator, device.key)
    failed, doubtful = evidence.failures(problem, device, operator.default)
    usable = {
        item.name: item for item in accepted if item.name not in failed or item.name == request.override
    }
    question = Question(
        default=operator.default,
        names=tuple(usable),
        excluded={**failed, **refused},
        doubtful=doubtful,
        objective=request.objective,
        limit_bytes=request.limit_bytes,
        override=request.override,
        counted_bytes={name: item.work(problem).saved_bytes for name, item in usable.items()},
    )
    figures = combine(_tiers(knowledge, request, usable), question.names, question.default)
    return _choice(knowledge, request, decide(question, figures))


def _check_override(request: Request, refused: Mapping[str, str]) -> None:
    if request.override is not None and request.override in refused:
        raise UnsupportedProblem(
            f"override={request.override!r} cannot compute {request.problem} on {request.where.device.name}: "
            f"{refused[request.override]}. Leave the override out, or name another implementation."
        )
    if len(refused) == len(registry.implementations(request.problem.operator)):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise UnsupportedProblem(
            f"No implementation computes {request.problem} on {request.where.device.name}: {reasons}."
        )


def _tiers(knowledge: Knowledge, request: Request, usable: Mapping[str, Implementation]) -> Iterator[Tier]:
    """The evidence, best first; nothing is computed that is not asked for."""
    device = request.where.device
    software = current_environment(request.where.torch_device) if request.where.torch_device else None
    evidence = knowledge.evidence(request.problem.operator, device.key)
    yield from evidence.tiers(request.problem, device, software)
    predictor = knowledge.predictor(request.problem.operator)
    if predictor is not None:
        yield predictor.tier(request.problem, device, software, usable)


@cache
def current_environment(torch_device: str) -> Environment:
    """The software of this process as a device of it sees it, looked up once."""
    from kernel_selector.kernels import measure

    return measure.current_environment(torch_device)


def _circumstances(knowledge: Knowledge, request: Request) -> Iterator[str]:
    """What to know whatever was chosen."""
    device, operator = request.where.device, request.problem.operator
    if request.where.torch_device is None:
        yield f"{device.name} is not in this machine: here, build() makes the module on the CPU."
    left_out = knowledge.evidence(operator, device.key).left_out
    if left_out:
        yield f"{left_out} records are left out: no {operator} can have their hyperparameters."


def _choice(knowledge: Knowledge, request: Request, decision: Decision) -> Choice:
    chosen: Candidate = decision.candidates[0]
    model = next((item for item in decision.candidates if item.source == "model"), None)
    predictor = knowledge.predictor(request.problem.operator) if model else None
    caveats = list(knowledge.caveats)
    if decision.source == "default" and not caveats and not any(item.source for item in decision.candidates):
        caveats.append(
            f"Nothing comparable was measured on {request.where.device.name}: "
            f"run `selector profile {request.problem.operator} --count 60` there."
        )
    caveats += _circumstances(knowledge, request)
    return Choice(
        problem=request.problem,
        device=request.where.device,
        torch_device=request.where.torch_device,
        implementation=decision.implementation,
        source=decision.source,
        time_ms=chosen.time_ms,
        time_interval_ms=chosen.time_interval_ms,
        memory_bytes=chosen.memory_bytes,
        memory_interval_bytes=chosen.memory_interval_bytes,
        runner_up=decision.runner_up,
        margin=decision.margin,
        candidates=decision.candidates,
        objective=request.objective,
        memory_limit_bytes=request.limit_bytes,
        snapshot=knowledge.snapshot,
        model_version=predictor.version if predictor else None,
        caveats=(*caveats, *decision.caveats),
        operator_assumed=request.operator_assumed,
    )
