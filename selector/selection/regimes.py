"""Questions about layers compiled with neighbours: who may be chosen, and who answers without records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem
from kernel_selector.kernels.contract.errors import number_of
from kernel_selector.kernels.contract.implementation import REPLAYS
from kernel_selector.kernels.contract.record import LAUNCHED

from ..cost_model.least_times import no_shorter
from . import transfer
from .evidence import says_wrong

if TYPE_CHECKING:
    from kernel_selector.kernels.contract import Implementation

    from ..cost_model.estimate import Tier
    from .knowledge import Knowledge
    from .policy import Figures
    from .query import Request

NOTHING = "Nothing comparable was measured compiled with neighbours on {}"
AS_LAUNCHED = (
    "this is the choice of launched layers, with their figures, among what a graph of torch.compile holds"
)
CORRECTED = (
    "these are times and bytes of launched layers, corrected by what was measured of layers both ways, {}"
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


def remark(knowledge: Knowledge, request: Request, figures: Figures) -> str:
    """Caveat of an answer by measurements of launched layers to a question about another regime."""
    problem = request.problem
    seen = knowledge.regime_corrections(problem.operator, request.device, request.regime)
    words = AS_LAUNCHED
    if seen is not None and figures.estimates:
        places = [f"{number_of(count, 'measurement')} on {device.name}" for device, count in seen.places]
        words = CORRECTED.format(" and ".join(places))
    words = f"{NOTHING.format(request.where.device.name)}: {words}"
    command = " ".join(("selector profile", problem.key, "--regime", request.regime))
    packed = problem.as_dict.get("packed")  # of which nothing is measured compiled
    return f"{words}." if packed else f"{words}: `{command}` measures it."


def carried(knowledge: Knowledge, tier: Tier, problem: Problem, request: Request, origin: Device) -> Tier:
    """The tier of launched layers on the request's device as one of its regime; the same without corrections.

    origin: whose measurements these are. Judged by 299 problems of an H200, in five folds, choices take 1.02
    times the fastest, where those of launched layers take 1.08 (`benchmarks.selection.compiled`).
    """
    device = request.device
    seen = knowledge.regime_corrections(problem.operator, device, request.regime)
    if seen is None or not tier.estimates:
        return tier
    known, host = registry.implementations(problem.operator), knowledge.evidence(problem.operator, origin.key)
    between = transfer.Between(device, device, problem["dtype"])
    faster = transfer.Between(device, origin, problem["dtype"]).host
    nearest, _ = seen.places[0]
    noise = 0.0 if nearest.key == device.key else transfer.doubt(device, nearest).least_gain
    estimates = {}
    for name, estimate in tier.estimates.items():
        work = known[name].work(problem)
        host_ms = faster * host.host_shares.ms(name, problem["mode"], work.launches)
        shares = between.shares(estimate.time_ms, host_ms, work)
        estimates[name] = seen.corrected(name, estimate, shares, noise)
    return tier._replace(source=transfer.SOURCE, estimates=no_shorter(estimates, problem, device))
