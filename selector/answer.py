"""From a question and what is known to a choice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Environment, SelectorError

from .choice import Choice
from .considering import considered_each
from .evidence import Tier
from .policy import Decision, combine, decide
from .predicted import Places, Predicted, Predictions, look_up
from .preparing import Opened, Prepared, circumstances, prepare, unmeasured
from .reading import Readings, places_of
from .request import Request
from .table import Table
from .together import choices, quiet_ones, settled

if TYPE_CHECKING:
    from .knowledge import Knowledge

Given = TypeVar("Given")
Result = TypeVar("Result")


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
    groups = _opened(requests)
    opened = {index: one for group in groups for index, one in group.items()}
    given = [
        request if isinstance(request, SelectorError) else opened[index]
        for index, request in enumerate(requests)
    ]
    quiet = quiet_ones(knowledge, groups)
    asked = [one if index in quiet else _tried(prepare, knowledge, one) for index, one in enumerate(given)]
    tiers = _tiers(knowledge, asked)
    ready = settled({index: (opened[index], tiers.get(index)) for index in quiet})
    others = set(tiers).difference(*(group.members for group in ready))
    wanted = _wanted([(asked[index], tiers[index]) for index in others])
    look_up([*(group.chosen for group in ready), *wanted])
    told = {index: choice for group in ready for index, choice in choices(knowledge, group).items()}
    told |= _unknown(knowledge, {index: (opened[index], tiers.get(index)) for index in quiet & others})
    return [
        told[index] if index in told else _tried(_finished, knowledge, _with(one, tiers.get(index)))
        for index, one in enumerate(asked)
    ]


def _opened(requests: Sequence[Request | SelectorError]) -> list[dict[int, Opened]]:
    """The requests by their places, with what the implementations say of their problems.

    Those about one operator and one device are together.
    """
    groups: list[dict[int, Opened]] = []
    readings = Readings()
    asked = [(index, one) for index, one in enumerate(requests) if isinstance(one, Request)]
    for numbers in places_of(one.problem.operator for _, one in asked).values():
        members = [asked[number] for number in numbers]
        table = Table([one.problem for _, one in members], readings)
        for places in places_of(id(one.where) for _, one in members).values():
            where = members[places[0]][1].where
            software = current_environment(where.torch_device) if where.torch_device else None
            found = zip(places, considered_each(table.part(places), where.device), strict=True)
            opened = [(members[place], place, considered) for place, considered in found]
            groups.append(
                {
                    index: Opened(one, table, place, considered, software)
                    for (index, one), place, considered in opened
                }
            )
    return groups


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


def _tiers(
    knowledge: Knowledge, asked: Sequence[Opened | Prepared | SelectorError]
) -> dict[int, Tier | SelectorError]:
    """The cost models' tiers, or the errors of asking for them, by the places of those that need them."""
    by_operator: dict[str, dict[int, Opened | Prepared]] = defaultdict(dict)
    for index, one in enumerate(asked):
        if isinstance(one, Opened) or (isinstance(one, Prepared) and not one.is_complete):
            by_operator[one.opened.request.problem.operator][index] = one
    found: dict[int, Tier | SelectorError] = {}
    for operator, members in by_operator.items():
        predicted = _tried(_predicted, knowledge, (operator, list(members.values())))
        if isinstance(predicted, SelectorError):
            found |= dict.fromkeys(members, predicted)
        else:
            found |= dict(zip(members, predicted, strict=False))  # there are none without a model
    return found


def _predicted(knowledge: Knowledge, given: tuple[str, Sequence[Opened | Prepared]]) -> list[Tier]:
    """The cost model's tier for each, in their order; none without a model."""
    operator, members = given
    predictor = knowledge.predictor(operator)
    if predictor is None:
        return []
    from .predictor import Questions

    table, known, found = _table(members), registry.implementations(operator), dict[int, Tier]()
    opened = [one.opened for one in members]
    for group in places_of((id(one.request.where.device), id(one.software)) for one in opened).values():
        first, names = opened[group[0]], [members[place].names for place in group]
        device = first.request.where.device
        least_noise = knowledge.evidence(operator, device.key).least_noise(device)
        asked = Questions(table.part(group), device, first.software, names, least_noise)
        found |= zip(group, predictor.tiers(asked, known), strict=True)
    return [found[place] for place in range(len(members))]


def _table(members: Sequence[Opened | Prepared]) -> Table:
    """The problems of questions about one operator, as the cost model is asked about them."""
    if any(isinstance(one, Prepared) and one.reading is not one.opened.reading for one in members):
        return Table([one.reading for one in members])
    return members[0].opened.table.part([one.opened.place for one in members])


def _wanted(
    asked: Sequence[tuple[Opened | Prepared | SelectorError, Tier | SelectorError]],
) -> Iterator[tuple[Predictions, Places]]:
    """The rows of predictions that will be looked at: of candidates that no measurement tells of."""
    for one, tier in asked:
        if isinstance(tier, Tier) and isinstance(tier.estimates, Predicted):
            measured = one.measured if isinstance(one, Prepared) else ()
            covered = {name for found in measured for name in found.estimates}
            yield tier.estimates.together, tier.estimates.rows(without=covered)


def _with(
    one: Opened | Prepared | SelectorError, tier: Tier | SelectorError | None
) -> tuple[Opened | Prepared, Tier | None] | SelectorError:
    """A question with the cost model's tier, if there is one; or the error that either met."""
    if isinstance(one, SelectorError):
        return one
    return tier if isinstance(tier, SelectorError) else (one, tier)


def _finished(knowledge: Knowledge, given: tuple[Opened | Prepared, Tier | None]) -> Choice:
    """The choice for one question, by all that is known of it."""
    one, tier = given
    prepared = unmeasured(one) if isinstance(one, Opened) else one
    question, measured = prepared.question, prepared.measured
    figures = combine([*measured, tier] if tier else measured, question.names, question.default)
    return _choice(
        knowledge, prepared.opened.request, decide(question, figures), set(figures.sources.values())
    )


def _unknown(
    knowledge: Knowledge, asked: Mapping[int, tuple[Opened, Tier | SelectorError | None]]
) -> dict[int, Choice]:
    """The choices for quiet questions, by their places, from which the cost model abstains.

    Those whose problems the same implementations accept are decided once, and differ in problem and caveats.
    """
    told: dict[int, Choice] = {}
    decided: dict[tuple[int, int, bool], tuple[Choice, int]] = {}
    for index, (one, tier) in asked.items():
        if not isinstance(tier, Tier) or tier.estimates:
            continue
        request = one.request
        key = id(one.considered), id(request.where), request.operator_assumed
        if key not in decided:
            first = _finished(knowledge, (one, tier))
            decided[key] = first, len(first.caveats) - len(tier.caveats)
        choice, own = decided[key]
        caveats = *choice.caveats[:own], *tier.caveats
        told[index] = Choice.made({**vars(choice), "problem": request.problem, "caveats": caveats})
    return told


@cache
def current_environment(torch_device: str) -> Environment:
    """The software of this process as a device of it sees it, looked up once."""
    from kernel_selector.kernels import measure

    return measure.current_environment(torch_device)


def _choice(knowledge: Knowledge, request: Request, decision: Decision, sources: set[str]) -> Choice:
    chosen = decision.chosen
    predictor = knowledge.predictor(request.problem.operator) if "model" in sources else None
    caveats = list(knowledge.caveats)
    if decision.source == "default" and not caveats and not sources:
        caveats.append(
            f"Nothing comparable was measured on {request.where.device.name}: "
            f"run `selector profile {request.problem.operator} --count 60` there."
        )
    caveats += circumstances(knowledge, request)
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
