"""From a question and what is known to a choice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import (
    Environment,
    Problem,
    SelectorError,
    UnsupportedProblem,
)
from kernel_selector.kernels.contract.errors import shorten

from .alike import timed_alike
from .choice import Choice
from .considering import Considered, Excluded, considered_each
from .devices import Resolved
from .errors import InvalidRequest
from .policy import Decision, Question, combine, decide
from .reading import KeptBytes, Reading, Readings
from .units import parse_bytes

if TYPE_CHECKING:
    from .evidence import Evidence, Tier
    from .knowledge import Knowledge

DEFAULT_OPERATOR = "lstm"
OBJECTIVES = ("time", "memory")
Given = TypeVar("Given")
Result = TypeVar("Result")


class Request(NamedTuple):
    """The arguments of a question, parsed."""

    problem: Problem
    where: Resolved
    limit_bytes: int | None
    objective: str
    override: str | None
    operator_assumed: bool


def problem_of(operator: str | None, hyperparameters: Mapping[str, object]) -> Problem:
    """The problem of a question. Raises the errors that `selector.choose` lists for them."""
    return registry.operator(DEFAULT_OPERATOR if operator is None else operator).problem(hyperparameters)


def parse(
    knowledge: Knowledge,
    problem: Problem,
    operator: str | None,
    device: object,
    memory: str | int | None,
    objective: str,
    override: str | None,
) -> Request:
    """The parsed arguments beside the problem. Raises the errors that `selector.choose` lists."""
    if objective not in OBJECTIVES:
        raise InvalidRequest(f"objective={shorten(objective)}: expected one of {', '.join(OBJECTIVES)}.")
    if override is not None:
        registry.implementation(problem.operator, override)
    return Request(
        problem=problem,
        limit_bytes=None if memory is None else parse_bytes(memory),
        where=knowledge.resolved(device),
        objective=objective,
        override=override,
        operator_assumed=operator is None,
    )


class Prepared(NamedTuple):
    """A request with all that is known of it but the cost model's figures."""

    request: Request
    reading: Reading  # of the problem
    question: Question
    software: Environment | None
    measured: list[Tier]  # best first

    @property
    def is_complete(self) -> bool:
        """Whether every candidate was measured, so that the cost model has nothing to add."""
        if not self.measured:
            return False
        question = self.question
        found = combine(self.measured, question.names, question.default)
        return found.base is not None and len(found.estimates) == len(question.names)


def answer(knowledge: Knowledge, request: Request) -> Choice:
    """The choice for a request. Raises UnsupportedProblem, NothingFits, ModelVersionMismatch."""
    (found,) = answer_each(knowledge, [request])
    if isinstance(found, SelectorError):
        raise found
    return found


def answer_each(
    knowledge: Knowledge, requests: Sequence[Request | SelectorError]
) -> list[Choice | SelectorError]:
    """The choice for each request, or the error that it met; the cost model is asked once for all of them."""
    prepared = _prepared_each(knowledge, requests)
    by_operator: dict[str, list[int]] = defaultdict(list)
    for index, one in enumerate(prepared):
        if isinstance(one, Prepared) and not one.is_complete:
            by_operator[one.request.problem.operator].append(index)
    for operator, members in by_operator.items():
        ready = [one for one in (prepared[index] for index in members) if isinstance(one, Prepared)]
        predicted = _tried(_predicted, knowledge, (operator, ready))
        for index, one in zip(members, ready, strict=True):
            if isinstance(predicted, SelectorError):
                prepared[index] = predicted
            elif predicted:
                one.measured.append(predicted.pop(0))
    return [_tried(_finished, knowledge, one) for one in prepared]


def _tried(
    work: Callable[[Knowledge, Given], Result], knowledge: Knowledge, given: Given | SelectorError
) -> Result | SelectorError:
    """What `work` makes of it, or the error that it met, now or before."""
    if isinstance(given, SelectorError):
        return given
    try:
        return work(knowledge, given)
    except SelectorError as error:
        return error


def _prepared_each(
    knowledge: Knowledge, requests: Sequence[Request | SelectorError]
) -> list[Prepared | SelectorError]:
    """Each request with what is known of it, or the error that it met."""
    readings = Readings()
    asked = [request for request in requests if isinstance(request, Request)]
    found = considered_each([(readings[one.problem], one.where.device) for one in asked])
    each = {id(request): one for request, one in zip(asked, found, strict=True)}

    def prepare(knowledge: Knowledge, request: Request) -> Prepared:
        return _prepare(readings, each[id(request)], knowledge, request)

    return [_tried(prepare, knowledge, request) for request in requests]


def _prepare(readings: Readings, found: Considered, knowledge: Knowledge, request: Request) -> Prepared:
    device, refused = request.where.device, found.refused
    operator = registry.operator(request.problem.operator)
    _check_override(request, refused)
    evidence = knowledge.evidence(operator.name, device.key)
    problem = readings[_known_as(request.problem, evidence)]
    failed, doubtful = evidence.failures(problem, device, operator.default)
    names = found.accepted
    if failed:
        names = tuple([name for name in names if name not in failed or name == request.override])
    question = Question(
        default=operator.default,
        names=names,
        excluded=Excluded(failed, refused) if failed else refused,
        doubtful=doubtful,
        objective=request.objective,
        limit_bytes=request.limit_bytes,
        override=request.override,
        counted_bytes=KeptBytes(problem, names),
    )
    software = current_environment(request.where.torch_device) if request.where.torch_device else None
    measured = list(evidence.tiers(problem, device, software))
    return Prepared(request, problem, question, software, measured)


def _known_as(problem: Problem, evidence: Evidence) -> Problem:
    """The problem, or the same with its operator's own epsilon where none was measured with this one."""
    alike = timed_alike(problem)
    if (
        alike is problem
        or alike == problem
        or any(one["eps"] == problem["eps"] for one in evidence.problems.values())
    ):
        return problem
    return alike


def _predicted(knowledge: Knowledge, given: tuple[str, Sequence[Prepared]]) -> list[Tier]:
    """The cost model's tier for each, in their order; none without a model."""
    operator, prepared = given
    predictor = knowledge.predictor(operator)
    if predictor is None:
        return []
    from .predictor import Asked

    known = registry.implementations(operator)
    return predictor.tiers(
        [
            Asked(one.reading, one.request.where.device, one.software, known, one.question.names)
            for one in prepared
        ]
    )


def _finished(knowledge: Knowledge, one: Prepared) -> Choice:
    figures = combine(one.measured, one.question.names, one.question.default)
    return _choice(knowledge, one.request, decide(one.question, figures), set(figures.sources.values()))


def _check_override(request: Request, refused: Mapping[str, str]) -> None:
    if request.override is not None and request.override in refused:
        raise UnsupportedProblem(
            f"override={request.override!r} cannot compute {request.problem} on {request.where.device.name}: "
            f"{refused[request.override]}. Leave the override out, or name another implementation."
        )
    if len(refused) == len(registry.implementations(request.problem.operator)):
        reasons = "; ".join(f"{name}: {refused[name]}" for name in sorted(refused))
        raise UnsupportedProblem(
            f"No implementation computes {request.problem} on {request.where.device.name}: {reasons}."
        )


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


def _choice(knowledge: Knowledge, request: Request, decision: Decision, sources: set[str]) -> Choice:
    chosen = decision.chosen
    predictor = knowledge.predictor(request.problem.operator) if "model" in sources else None
    caveats = list(knowledge.caveats)
    if decision.source == "default" and not caveats and not sources:
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
