"""Questions about layers compiled with neighbours: who may be chosen, and who answers without records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem
from kernel_selector.kernels.contract.implementation import REPLAYS
from kernel_selector.kernels.contract.record import COMPILED, LAUNCHED

from .evidence import says_wrong

if TYPE_CHECKING:
    from kernel_selector.kernels.contract import Implementation

    from .knowledge import Knowledge
    from .query import Request

AS_LAUNCHED = (
    "Nothing comparable was measured compiled with neighbours on {}: this is the choice of launched layers, "
    "with their figures, among what a graph of torch.compile holds"
)


def accepting(request: Request) -> tuple[list[Implementation], dict[str, str]]:
    """The implementations that accept a problem in a regime, and the others' reasons by name.

    One that was asked for by name is held by a graph whatever it does outside of it.
    """
    accepted, reasons = registry.candidates(request.problem, request.where.device)
    if request.regime == LAUNCHED:
        return accepted, reasons
    held = [one for one in accepted if not one.replays or one.name == request.override]
    return held, {**reasons, **{one.name: REPLAYS for one in accepted if one not in held}}


def failures(
    knowledge: Knowledge, request: Request, problem: Problem, origin: Device, default: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Reasons for exclusion and for doubt, as of `Evidence.failures`, of the regime that is asked for.

    What failed in it did, whatever answers; and what computed wrongly when it was launched does so compiled.
    """
    evidence = knowledge.measurements(problem.operator, origin.key, request.measured_in)
    failed, doubtful = evidence.failures(problem, request.device, default)
    if request.regime == LAUNCHED:
        return failed, doubtful
    other = request.regime if request.measured_in == LAUNCHED else LAUNCHED
    found = knowledge.measurements(problem.operator, origin.key, other)
    more = found.failures(problem, request.device, default)
    counts = says_wrong if other == LAUNCHED else bool
    excluded, suspect = ({name: one for name, one in of.items() if counts(one)} for of in more)
    return {**excluded, **failed}, {**suspect, **doubtful}


def as_launched(request: Request) -> Request:
    """The same question, answered by measurements of launched layers, with the caveat that says so."""
    problem, words = request.problem, AS_LAUNCHED.format(request.where.device.name)
    command = " ".join(("selector profile", problem.key, "--regime", COMPILED))
    packed = problem.as_dict.get("packed")  # of which nothing is measured compiled
    note = f"{words}." if packed else f"{words}: `{command}` measures it."
    return request._replace(measured_in=LAUNCHED, notes=(*request.notes, note))
