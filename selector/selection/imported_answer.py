"""Choices for imported operators: as for ours, with what is not known of them left out.

There is no default of a framework: the fastest by the evidence is chosen, and where there is none, outside of
what was measured, the implementation that was the fastest on most problems, which the choice says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernel_selector.kernels.contract import (
    Device,
    Problem,
    UnknownDevice,
    UnknownImplementation,
    UnsupportedProblem,
)
from kernel_selector.kernels.contract.errors import shorten, suggest

from ..errors import InvalidRequest, NoMeasurements
from ..text.units import parse_bytes
from ..workloads.imported_operator import ImportedOperator
from .choice import Candidate, Choice
from .devices import default_torch_device, resolve
from .policy import Decision, Question, combine, decide
from .query import OBJECTIVES, Query

if TYPE_CHECKING:
    from .snapshot import Knowledge


def answer(knowledge: Knowledge, query: Query) -> Choice:
    """The choice for a question about an imported operator. Raises the errors of `selector.choose`."""
    operator = knowledge.imported[str(query.operator)]
    problem = operator.problem(query.hyperparameters)
    limit = None if query.memory is None else parse_bytes(query.memory)
    _check(operator, query)
    name, assumed = _device(knowledge, operator, query.device)
    evidence = knowledge.imported_evidence(operator.name, name)
    predictor = knowledge.imported_predictor(operator.name)
    exact, failed = evidence.tier(problem), evidence.failures(problem)
    excluded = _excluded(operator, exact.estimates, failed, query.named)
    tiers = [exact]
    if predictor is not None:
        tiers.append(predictor.tier(problem, name))
    names = tuple(item for item in operator.implementations if item not in excluded)
    if not names:
        reasons = "; ".join(f"{item}: {reason}" for item, reason in excluded.items())
        raise UnsupportedProblem(f"No implementation computes {problem} on {name}: {reasons}.")
    figures = combine(tiers, names, default="")
    unknown = [item for item in names if item not in figures.estimates and item != query.named]
    if figures.estimates:
        excluded |= dict.fromkeys(unknown, "nothing is known of it on problems like this one")
        names = tuple(item for item in names if item not in unknown)
    winner = evidence.most_frequent_winner
    if not figures.estimates and query.named is None:
        if winner not in names or limit is not None:
            raise NoMeasurements(_nothing(operator, name, limit))
        decision = _by_frequency(operator, winner, excluded, figures.caveats)
    else:
        question = Question(
            default="",
            names=names,
            excluded=excluded,
            objective=query.objective,
            limit_bytes=limit,
            override=query.named,
            counted_bytes=lambda _: 0.0,
        )
        decision = decide(question, figures)
    version = predictor.version if predictor and _by_model(decision) else None
    return _choice(knowledge, operator, problem, query, decision, (name, limit, version, assumed))


def _check(operator: ImportedOperator, query: Query) -> None:
    if query.objective not in OBJECTIVES:
        raise InvalidRequest(
            f"objective={shorten(query.objective)}: expected one of {', '.join(OBJECTIVES)}."
        )
    if query.named is not None and query.named not in operator.implementations:
        raise UnknownImplementation(
            f"Unknown implementation {shorten(query.named)} of {operator.name}. "
            f"{suggest(query.named, operator.implementations)}"
        )
    if not operator.memory and (query.memory is not None or query.objective == "memory"):
        raise InvalidRequest(
            f"Nothing is known of the memory of {operator.name}: no bytes were imported. Ask without "
            "`memory`, for objective='time'."
        )


def _device(knowledge: Knowledge, operator: ImportedOperator, asked: object) -> tuple[str, tuple[str, ...]]:
    """The imported device that is meant, and what was assumed."""
    keys = {Device(name=name, kind="").key: name for name in operator.devices}
    if asked is None:
        here = resolve(default_torch_device(), knowledge.devices).device.key
        if here in keys:
            return keys[here], ()
        if len(keys) == 1:
            only = operator.devices[0]
            return only, (f"Answered for {only}: no device was named, and no other was measured.",)
        raise UnknownDevice(
            f"{operator.name} was not measured on this machine's device: name one of {', '.join(keys)}."
        )
    try:
        key = resolve(asked, (*knowledge.devices, *_devices(operator))).device.key
    except UnknownDevice:
        key = ""
    if key not in keys:
        raise UnknownDevice(
            f"{operator.name} was not measured on {shorten(getattr(asked, 'name', asked))}. "
            f"{suggest(asked, keys)}"
        )
    return keys[key], ()


def _devices(operator: ImportedOperator) -> tuple[Device, ...]:
    return tuple(Device(name=name, kind="") for name in operator.devices)


def _known(name: str) -> Device:
    """The device with what is known of it."""
    try:
        return resolve(name).device
    except UnknownDevice:
        return Device(name=name, kind="")


def _excluded(
    operator: ImportedOperator,
    measured: Mapping[str, object],
    failed: Mapping[str, str],
    override: str | None,
) -> dict[str, str]:
    """What failed at the problem; and where several were timed there, what was not."""
    excluded = dict(failed)
    if len(measured) > 1:
        for name in operator.implementations:
            if name not in measured:
                excluded.setdefault(name, "it is not among the measurements of this problem")
    return {name: reason for name, reason in excluded.items() if name != override}


def _nothing(operator: ImportedOperator, device: str, limit: int | None) -> str:
    wish = "" if limit is None else " that a memory limit could be checked against"
    return (
        f"There is nothing known of {operator.name} at this problem on {device}{wish}: import measurements "
        f"of problems around it, then `selector train {operator.name}`."
    )


def _by_frequency(
    operator: ImportedOperator, winner: str, excluded: Mapping[str, str], caveats: tuple[str, ...]
) -> Decision:
    order = [winner, *(name for name in operator.implementations if name != winner)]
    candidates = tuple(
        Candidate(name=name, default=False, excluded=None if name == winner else excluded.get(name))
        for name in order
    )
    return Decision(
        implementation=winner,
        source="default",
        runner_up=None,
        margin=None,
        candidates=candidates,
        caveats=(*caveats, f"{winner} was the fastest on most of the problems that were measured there."),
    )


def _by_model(decision: Decision) -> bool:
    return any(item.source == "model" for item in decision.candidates)


def _choice(
    knowledge: Knowledge,
    operator: ImportedOperator,
    problem: Problem,
    query: Query,
    decision: Decision,
    rest: tuple[str, int | None, str | None, tuple[str, ...]],
) -> Choice:
    device, limit, version, assumed = rest
    candidates = decision.candidates
    if not operator.memory:
        candidates = tuple(
            item._replace(memory_bytes=None, memory_interval_bytes=None) for item in candidates
        )
    chosen = candidates[0]
    origin = f"{operator.name} is {operator.describe()['title']}: its kernels cannot be built here."
    return Choice(
        problem=problem,
        device=_known(device),
        torch_device=None,
        implementation=decision.implementation,
        source=decision.source,
        time_ms=chosen.time_ms,
        time_interval_ms=chosen.time_interval_ms,
        memory_bytes=chosen.memory_bytes,
        memory_interval_bytes=chosen.memory_interval_bytes,
        runner_up=decision.runner_up,
        margin=decision.margin,
        candidates=candidates,
        objective=query.objective,
        memory_limit_bytes=limit,
        snapshot=knowledge.snapshot,
        model_version=version,
        caveats=(origin, *assumed, *decision.caveats),
        operator_assumed=False,
    )
