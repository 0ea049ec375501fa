"""What is known of a question but the cost model's figures: what fits, what failed, what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Environment, Problem, UnsupportedProblem

from .alike import timed_alike
from .considering import Considered
from .evidence import says_wrong
from .policy import Question, combine
from .reading import KeptBytes, Reading
from .request import Request
from .table import Table

if TYPE_CHECKING:
    from .evidence import Evidence, Tier
    from .knowledge import Knowledge


class Opened(NamedTuple):
    """A request with the implementations that accept its problem, and the software that it is about."""

    request: Request
    table: Table  # that has the problem,
    place: int  # in this row
    considered: Considered
    software: Environment | None

    @property
    def opened(self) -> Opened:
        """Itself, as of a question that was prepared."""
        return self

    @property
    def reading(self) -> Reading:
        """The problem as it is quick to read."""
        return self.table[self.place]

    @property
    def names(self) -> tuple[str, ...]:
        """Those that may be chosen where nothing failed."""
        return self.considered.accepted


class Prepared(NamedTuple):
    """A question with all that is known of it but the cost model's figures."""

    opened: Opened
    reading: Reading  # of the problem, or of one that takes the same
    question: Question
    measured: list[Tier]  # best first

    @property
    def names(self) -> tuple[str, ...]:
        """Those that may be chosen."""
        return self.question.names

    @property
    def is_complete(self) -> bool:
        """Whether every candidate was measured, so that the cost model has nothing to add."""
        if not self.measured:
            return False
        question = self.question
        found = combine(self.measured, question.names, question.default)
        return found.base is not None and len(found.estimates) == len(question.names)


def prepare(knowledge: Knowledge, opened: Opened) -> Prepared:
    """What is known of a request. Raises UnsupportedProblem and the errors of reading the database."""
    request, asked, (accepted, refused) = opened.request, opened.reading, opened.considered
    device, operator = request.where.device, registry.operator(request.problem.operator)
    _check_override(request, refused)
    evidence = knowledge.evidence(operator.name, device.key)
    alike = _known_as(request.problem, evidence)
    problem = asked if alike is request.problem else Reading.of(alike)
    failed, doubtful = evidence.failures(problem, device, operator.default)
    question = question_of(request, problem, Considered(accepted, refused), failed, doubtful)
    return Prepared(opened, problem, question, list(evidence.tiers(problem, device, opened.software)))


def unmeasured(opened: Opened) -> Prepared:
    """The same of a request about whose problem measurements say nothing, see `together.quiet_ones`."""
    question = question_of(opened.request, opened.reading, opened.considered, {}, {})
    return Prepared(opened, opened.reading, question, [])


def question_of(
    request: Request,
    problem: Reading,
    considered: Considered,
    failed: Mapping[str, str],
    doubtful: Mapping[str, str],
) -> Question:
    """What is to be decided."""
    names, refused = considered
    if failed:
        names = tuple([name for name in names if name not in failed or name == request.override])
    default = registry.operator(problem.operator).default
    reason = failed.get(default) or doubtful.get(default, "")
    return Question(
        default=default,
        default_is_wrong=reason if says_wrong(reason) else "",
        names=names,
        excluded={**failed, **refused} if failed else refused,
        doubtful=doubtful,
        objective=request.objective,
        limit_bytes=request.limit_bytes,
        override=request.override,
        counted_bytes=KeptBytes(problem, names),
    )


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


def circumstances(knowledge: Knowledge, request: Request) -> Iterator[str]:
    """What to know whatever was chosen."""
    device, operator = request.where.device, request.problem.operator
    if request.retired is not None:
        yield request.retired
    if request.where.torch_device is None:
        yield f"{device.name} is not in this machine: here, build() makes the module on the CPU."
    left_out = knowledge.evidence(operator, device.key).left_out
    if left_out:
        yield f"{left_out} records are left out: no {operator} can have their hyperparameters."
