"""Questions about layers compiled with neighbours: who may be chosen, and who answers without records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem
from kernel_selector.kernels.contract.errors import number_of
from kernel_selector.kernels.contract.implementation import REPLAYS
from kernel_selector.kernels.contract.record import COMPILED, LAUNCHED

from . import transfer
from .evidence import says_wrong

if TYPE_CHECKING:
    from kernel_selector.kernels.contract import Implementation

    from ..cost_model.estimate import Tier
    from .knowledge import Knowledge
    from .query import Request

NOTHING = "Nothing comparable was measured compiled with neighbours on {}"
AS_LAUNCHED = (
    "this is the choice of launched layers, with their figures, among what a graph of torch.compile holds"
)
CORRECTED = "these are times of launched layers, corrected by {} of layers that were measured both ways on {}"


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


def as_launched(knowledge: Knowledge, request: Request) -> Request:
    """The same question, answered by measurements of launched layers, with the caveat that says so."""
    problem, known = request.problem, corrections(knowledge, request)
    words = AS_LAUNCHED
    if known is not None:
        device, seen = known
        words = CORRECTED.format(number_of(seen.count, "measurement"), device.name)
    words = f"{NOTHING.format(request.where.device.name)}: {words}"
    command = " ".join(("selector profile", problem.key, "--regime", COMPILED))
    packed = problem.as_dict.get("packed")  # of which nothing is measured compiled
    note = f"{words}." if packed else f"{words}: `{command}` measures it."
    return request._replace(measured_in=LAUNCHED, notes=(*request.notes, note))


def corrections(knowledge: Knowledge, request: Request) -> tuple[Device, transfer.Corrections] | None:
    """Corrections of times of launched layers to those of a regime, by the device itself or that most like it
    of which layers were measured both ways; None without one. Raises the errors of reading the database.
    """
    device, operator = request.device, request.problem.operator
    for one in (device, *transfer.alike(device, knowledge.devices)):
        found = knowledge.corrections(operator, one, one, request.regime)
        if found.count:
            return one, found
    return None


def carried(knowledge: Knowledge, tier: Tier, problem: Problem, request: Request) -> Tier:
    """The tier of launched layers on the request's device as one of its regime; the same without corrections.

    Judged by an H200's 299 problems that were measured both ways, in five folds, choices take 1.02 times the
    fastest, where those of launched layers take 1.08 (`benchmarks.selection.compiled`).
    """
    known = corrections(knowledge, request)
    if known is None or not tier.estimates:
        return tier
    device, seen = known
    between = transfer.Between(device, device, problem["dtype"])
    host = knowledge.evidence(problem.operator, device.key).host_shares
    found = transfer.corrected(tier.estimates, problem, between, host, seen)
    if device is not request.device:
        least_gain = transfer.doubt(request.device, device).least_gain
        found = {name: one.timed(1.0, 1.0, least_gain) for name, one in found.items()}
    return tier._replace(source=transfer.SOURCE, estimates=found)
