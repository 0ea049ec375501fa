"""The path from questions to choices: measurements, the cost model's estimates, and the decision."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import (
    Device,
    Environment,
    Problem,
    SelectorError,
    UnsupportedProblem,
)
from kernel_selector.kernels.contract.errors import number_of
from kernel_selector.kernels.contract.record import LAUNCHED

from ..cost_model.domain import UNSEEN_WIDTH
from ..cost_model.estimate import Tier
from ..errors import NoMeasurements
from . import regimes, transfer
from .basis import COUNTED, Ground
from .choice import Candidate, Choice
from .evidence import Evidence, says_wrong
from .knowledge import ModelQuestion, best_predictions
from .neighbours import timed_alike
from .policy import Decision, Figures, Question, combine, decide
from .query import Request

if TYPE_CHECKING:
    from .imported_evidence import ImportedEvidence
    from .knowledge import Knowledge

REFUSED = "The latest cost model is not used, but an earlier one, one that ships, or none."
USED = "Rests on the measurements that come with this package."
BUILDS = {"cpu": "here, build() makes the module on the CPU"}
BUILDS_THERE = "build() needs it, or a `device`"
USED_IN_PART = "The figures of {} rest on the measurements that come with this package."
Given = TypeVar("Given")
Result = TypeVar("Result")


class Prepared(NamedTuple):
    """A question with all that is known of it but estimates from other problems."""

    request: Request
    problem: Problem  # that of the request, or one that takes the same time and bytes
    origin: Device  # that was measured: the request's, or one like it where nothing was
    software: Environment | None
    question: Question
    measured: list[Tier]  # of the problem itself, best first
    least_noise: tuple[float, float]  # of the times of one's own cost model, and of the one that ships

    @property
    def is_complete(self) -> bool:
        """Whether every candidate was measured, so that the cost model has nothing to add."""
        if not self.measured:
            return False
        found = combine(self.measured, self.question.estimated, self.question.default)
        return found.base is not None and len(found.estimates) == len(self.question.estimated)


class Known(NamedTuple):
    """A question with comparable figures, and the cost model's prediction that is among them."""

    prepared: Prepared
    predicted: Tier | None
    figures: Figures


def answer_each(knowledge: Knowledge, requests: Sequence[Request]) -> list[Choice | SelectorError]:
    """The choice for each request, or the error that it met."""
    return [_tried(finish, knowledge, one) for one in known_each(knowledge, requests)]


def known_each(knowledge: Knowledge, requests: Sequence[Request]) -> list[Known | SelectorError]:
    """The figures that each request is decided on, or the error that it met.

    The cost models are asked once for all of them. Where nothing of a regime can be compared, launched layers
    are asked, and where nothing on a device can, another one like it, once for all of them too.
    """
    known = _compared(knowledge, [_tried(prepare, knowledge, request) for request in requests])
    for ask, join in ((_as_launched, _instead), (_elsewhere, _joined)):
        asked = {index: _tried(ask, knowledge, one) for index, one in enumerate(known)}
        again = {index: one for index, one in asked.items() if one is not None}
        for index, other in zip(again, _compared(knowledge, list(again.values())), strict=True):
            known[index] = _tried(join, knowledge, other, known[index])
    return known


def _tried(
    step: Callable[..., Result], knowledge: Knowledge, given: Given | SelectorError, *more: object
) -> Result | SelectorError:
    """The result of a step, or the error that it or an earlier step met."""
    if isinstance(given, SelectorError):
        return given
    try:
        return step(knowledge, given, *more)
    except SelectorError as error:
        return error


def prepare(knowledge: Knowledge, request: Request, origin: Device | None = None) -> Prepared:
    """A question with its candidates, refusals, failures and measurements.

    origin: whose measurements; None: the request's device, or one like it where nothing was measured on it.
    Raises UnsupportedProblem, and the errors of reading the database.
    """
    device, torch_device = request.device, request.where.torch_device
    default, accepted, refused = _candidates(request)
    origin = origin or next(_origins(knowledge, request), device)
    evidence = knowledge.measurements(request.problem.operator, origin.key, request.measured_in)
    request, problem = _known_as(request, evidence)
    software = current_environment(torch_device) if torch_device and origin is device else None
    failed, doubtful = regimes.failures(knowledge, request, problem, origin, default)
    reason = failed.get(default) or doubtful.get(default, "")
    names = tuple([name for name in accepted if name not in failed or name == request.override])
    question = Question(
        default=default,
        default_is_wrong=reason if says_wrong(reason) and _is_wanted(request, default) else "",
        most_frequent_winner=_most_frequent_winner(request, evidence, problem, names),
        names=names,
        excluded={**failed, **refused},
        doubtful=doubtful,
        objective=request.objective,
        limit_bytes=request.limit_bytes,
        override=request.override,
        counted_bytes=lambda name: 0.0 if request.imported else _saved_bytes(problem, name),
        has_memory=request.imported is None or request.imported.memory,
    )
    if not names and not (default and _is_wanted(request, default)):
        raise _unsupported(request, question.excluded)
    return Prepared(
        request=request,
        problem=problem,
        origin=origin,
        software=software,
        question=question,
        measured=[
            _here(knowledge, one, problem, request, origin)
            for one in evidence.measured(problem, origin, software)
        ],
        least_noise=(evidence.least_noise(device, shipped=False), evidence.least_noise(device, shipped=True)),
    )


def _most_frequent_winner(
    request: Request, evidence: Evidence | ImportedEvidence, problem: Problem, names: tuple[str, ...]
) -> str | None:
    """What to fall back to without a framework's default; None with one."""
    if request.imported is None or isinstance(evidence, Evidence):
        return None
    return evidence.most_frequent_winner(problem, names)


def _origins(knowledge: Knowledge, request: Request) -> Iterator[Device]:
    """The measured devices that may answer: the request's own, then those like it."""
    operator, device = request.problem.operator, request.device
    if request.imported is not None:
        yield request.origin or device
        return
    if request.measured_in != LAUNCHED:
        yield device
        return
    if knowledge.evidence(operator, device.key).problems:
        yield device
    yield from knowledge.others(operator, device)


def _as_launched(knowledge: Knowledge, known: Known) -> Prepared | None:
    """The question to launched layers, where nothing that was measured in its own regime can be compared."""
    request = known.prepared.request
    if request.measured_in == LAUNCHED or known.figures.base is not None:
        return None
    return prepare(knowledge, request._replace(measured_in=LAUNCHED))


def _instead(_knowledge: Knowledge, other: Known, _known: Known) -> Known:
    return other


def _elsewhere(knowledge: Knowledge, known: Known) -> Prepared | None:
    """The question to a device like its own, where nothing that was measured can be compared or is near."""
    request, asked = known.prepared.request, known.prepared.origin.key
    is_near = known.figures.base is not None and known.figures.doublings < UNSEEN_WIDTH
    if is_near or request.imported is not None:
        return None
    others = (one for one in _origins(knowledge, request) if one.key not in (asked, request.device.key))
    other = next(others, None)
    return None if other is None else prepare(knowledge, request, other)


def _joined(knowledge: Knowledge, other: Known, known: Known) -> Known:
    """What is known of a question with what another device adds; as it was where that cannot be compared.

    What is far outside of what was measured on its device goes after what is not on the other one.
    """
    mine, theirs = known.prepared.question, other.prepared.question
    question = mine._replace(
        names=tuple([name for name in mine.names if name in theirs.names]),
        excluded={**theirs.excluded, **mine.excluded},
        doubtful={**theirs.doubtful, **mine.doubtful},
        default_is_wrong=mine.default_is_wrong or theirs.default_is_wrong,
    )
    tiers = [tier for one in (known, other) for tier in _tiers(knowledge, one.prepared, one.predicted)]
    tiers.sort(key=lambda tier: tier.doublings >= UNSEEN_WIDTH)
    figures = combine(tiers, question.estimated, question.default)
    if figures.base is None:
        return known
    return Known(known.prepared._replace(question=question), known.predicted, figures)


def _here(knowledge: Knowledge, tier: Tier, problem: Problem, request: Request, origin: Device) -> Tier:
    """What is known on `origin` as it would be on the request's device, in its regime."""
    if request.imported is not None:
        is_own = origin is request.device
        is_asked = tier.source != "exact" or problem == request.problem
        if is_own:
            return tier if is_asked else tier._replace(source="near")
        return tier._replace(source=transfer.SOURCE, origin=origin)
    evidence, is_own = knowledge.evidence(problem.operator, origin.key), origin is request.device
    if not is_own:
        seen, host = knowledge.corrections(problem.operator, request.device, origin), evidence.host_shares
        tier = transfer.carried(tier, problem, request.device, tier.origin or origin, host, seen)
    if request.measured_in != request.regime:
        tier = regimes.carried(knowledge, tier, problem, request, origin)
    return transfer.in_host(tier, problem, origin, evidence) if is_own else tier


def _candidates(request: Request) -> tuple[str, Sequence[str], Mapping[str, str]]:
    """The framework's default, "" without one, what accepts the problem, and why others are none.

    Raises UnsupportedProblem where no implementation, or not the one asked for, takes the problem.
    """
    default, names, refused = "", list[str](), dict[str, str]()
    if request.imported is not None:
        names += request.imported.implementations
    else:
        accepted, reasons = regimes.accepting(request)
        _check_refusals(request, reasons)
        default, refused = registry.operator(request.problem.operator).default, {**reasons}
        names += [one.name for one in accepted]
    others = [name for name in names if not _is_wanted(request, name)]
    refused |= dict.fromkeys(others, "it is not among those asked for")
    return default, [name for name in names if name not in others], refused


def _is_wanted(request: Request, name: str) -> bool:
    return not request.among or name in request.among


def _saved_bytes(problem: Problem, name: str) -> float:
    return registry.implementation(problem.operator, name).work(problem).saved_bytes


def _check_refusals(request: Request, refused: Mapping[str, str]) -> None:
    """Raise UnsupportedProblem where no implementation, or not the one asked for, takes the problem."""
    if request.override is not None and request.override in refused:
        raise UnsupportedProblem(
            f"{request.override} cannot compute {request.problem} on {request.where.device.name}: "
            f"{refused[request.override]}. Name no implementation, or another one."
        )
    known = registry.implementations(request.problem.operator)
    if all(name in refused for name in known if _is_wanted(request, name)):
        raise _unsupported(request, refused)


def _unsupported(request: Request, reasons: Mapping[str, str]) -> UnsupportedProblem:
    words = "; ".join(f"{name}: {reasons[name]}" for name in sorted(reasons) if _is_wanted(request, name))
    subject = f"None of {', '.join(request.among)}" if request.among else "No implementation"
    return UnsupportedProblem(f"{subject} computes {request.problem} on {request.device.name}: {words}.")


def _known_as(request: Request, evidence: Evidence | ImportedEvidence) -> tuple[Request, Problem]:
    """The request with caveats, and the problem that is looked up for it: its own, or one like it.

    That is the same with its operator's own epsilon where none was measured with this one, and of an imported
    operator the same with the only values that were measured of what never varies.
    """
    problem = request.problem
    if isinstance(evidence, Evidence):
        alike = timed_alike(problem)
        is_known = alike == problem or any(one["eps"] == problem["eps"] for one in evidence.problems.values())
        return request, problem if is_known else alike
    if request.imported is None:
        return request, problem
    known, notes = evidence.known_as(problem)
    return request._replace(notes=(*request.notes, *notes)), known


@cache
def current_environment(torch_device: str) -> Environment:
    """The software of this process as a device of it sees it, looked up once."""
    from kernel_selector.kernels import measure

    return measure.current_environment(torch_device)


def _compared(
    knowledge: Knowledge, prepared: Sequence[Prepared | SelectorError]
) -> list[Known | SelectorError]:
    """Comparable figures of each question, or the error that it met."""
    predicted = _predicted(knowledge, prepared)
    return [
        tier if isinstance(tier, SelectorError) else _tried(_figures, knowledge, one, tier)
        for one, tier in zip(prepared, predicted, strict=True)
    ]


def _figures(knowledge: Knowledge, prepared: Prepared, predicted: Tier | None) -> Known:
    question = prepared.question
    figures = combine(_tiers(knowledge, prepared, predicted), question.estimated, question.default)
    return Known(prepared, predicted, figures)


def _predicted(
    knowledge: Knowledge, prepared: Sequence[Prepared | SelectorError]
) -> list[Tier | SelectorError | None]:
    """The cost models' estimates for each question, or its error; None where none is asked.

    Questions about one operator, device and software go through a cost model together.
    """
    groups: dict[tuple[str, int, int], dict[int, ModelQuestion]] = defaultdict(dict)
    for index, one in enumerate(prepared):
        if isinstance(one, Prepared) and not one.is_complete and one.request.measured_in == LAUNCHED:
            device, software = one.origin, one.software
            groups[one.problem.operator, id(device), id(software)][index] = ModelQuestion(
                one.problem,
                one.question.estimated,
                device,
                software,
                imported=one.request.imported is not None,
                least_noise=one.least_noise,
            )
    found: list[Tier | SelectorError | None] = [None] * len(prepared)
    for (operator, *_), members in groups.items():
        try:
            predictors = knowledge.predictors(operator)
        except SelectorError as error:
            for index in members:
                found[index] = error
            continue
        for index, tier in best_predictions(knowledge, predictors, members).items():
            found[index] = tier
    return found


def finish(knowledge: Knowledge, known: Known) -> Choice:
    """The choice for a question, by all that is known of it. Raises NothingFits and NoMeasurements."""
    prepared, _, figures = known
    if not prepared.question.default:
        _require_measurements(prepared.request, prepared.question, figures)
    return _choice(knowledge, prepared, decide(prepared.question, figures), figures)


def _tiers(knowledge: Knowledge, prepared: Prepared, predicted: Tier | None) -> Iterator[Tier]:
    """All that is known of a question, best first: measurements, the cost model, and the nearest problem.

    The cost model goes first: it has seen the nearest problem too. On 322 problems of an H200 (RMS norms,
    GRUs, attentions and linear layers) that it had not seen, each near to one that it had, it loses 0.8 %
    against the fastest, and the nearest 5.9 %.
    """
    problem, request, origin = prepared.problem, prepared.request, prepared.origin
    yield from prepared.measured
    evidence = knowledge.measurements(problem.operator, origin.key, request.measured_in)
    if predicted is not None:
        yield _here(knowledge, evidence.bounded(predicted, problem, origin), problem, request, origin)
    near = evidence.near(problem, origin, prepared.software)
    if near is not None:
        yield _here(knowledge, near, problem, request, origin)


def _require_measurements(request: Request, question: Question, figures: Figures) -> None:
    """Raise NoMeasurements where neither a figure nor a frequent winner says what to choose."""
    if figures.estimates or question.override is not None:
        return
    if question.limit_bytes is not None or question.most_frequent_winner not in question.names:
        limit = "" if question.limit_bytes is None else " that a memory limit could be checked against"
        operator = request.problem.operator
        raise NoMeasurements(
            f"There is nothing known of {operator} at this problem on {request.device.name}{limit}: import "
            f"measurements of problems around it, then `selector train {operator}`."
        )


def _choice(knowledge: Knowledge, prepared: Prepared, decision: Decision, figures: Figures) -> Choice:
    request, chosen = prepared.request, decision.candidates[0]
    caveats = [*knowledge.caveats, *_circumstances(knowledge, request, figures)]
    refused = knowledge.refused.get(request.problem.operator)
    if refused is not None:
        caveats.append(f"{REFUSED} {refused}")
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
        model_version=figures.model,
        caveats=(*caveats, *decision.caveats),
        operator_assumed=request.operator_assumed,
        regime=request.regime,
        ground=_ground(knowledge, prepared, chosen, figures),
    )


def _ground(knowledge: Knowledge, prepared: Prepared, chosen: Candidate, figures: Figures) -> Ground:
    """The evidence behind the chosen figures, or without any that of the device that was looked at."""
    problem, request, tier = prepared.problem, prepared.request, figures.tiers.get(chosen.name)
    counts_bytes = request.limit_bytes is not None or bool(
        prepared.question.default and not chosen.default and request.override is None
    )
    source = chosen.source or (COUNTED if counts_bytes else "")
    device = prepared.origin if tier is None else tier.origin or request.device
    software = prepared.software if device is prepared.origin else None
    evidence = knowledge.measurements(problem.operator, device.key, request.measured_in)
    return Ground.of(tier, source, problem, evidence, device, software)


def _circumstances(knowledge: Knowledge, request: Request, figures: Figures) -> Iterator[str]:
    """Caveats that hold whatever was chosen: on what the figures rest, and what was asked."""
    device, operator = request.where.device, request.problem.operator
    if figures.shipped:
        names = sorted(figures.shipped)
        yield USED if len(names) == len(figures.estimates) else USED_IN_PART.format(", ".join(names))
    elif not figures.estimates and request.imported is None:
        yield from _nothing_measured(knowledge, request)
    yield from request.notes
    if request.imported is not None:
        return
    if request.measured_in != request.regime:
        yield regimes.remark(knowledge, request, figures)
    if request.where.torch_device is None:
        yield f"{device.name} is not in this machine: {BUILDS.get(device.kind, BUILDS_THERE)}."
    evidence = knowledge.evidence(operator, device.key, request.measured_in)
    if left_out := evidence.left_out.total():
        yield f"{left_out} records are left out: no {operator} can have their hyperparameters."
    if waiting := evidence.waiting.get(request.problem.key):
        yield (
            f"{number_of(waiting, 'measurement')} of this problem do{'es' * (waiting == 1)} not count yet: "
            "no second run, or no second author, agrees."
        )


def _nothing_measured(knowledge: Knowledge, request: Request) -> Iterator[str]:
    """Why there are no figures, and what gives some."""
    if knowledge.missing:
        yield from knowledge.missing
        return
    if request.override is None:
        yield (
            f"Nothing comparable was measured on {request.where.device.name}: "
            f"run `selector profile {request.problem.operator} --count 60` there."
        )
