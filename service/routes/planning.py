"""Routes for cluster schedulers: throughputs and placements, also in the schedulers' formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from selector import Selector
from selector.errors import InvalidRequest

from ..openapi import examples
from ..openapi.document import problem_response
from ..scheduling import placement_formats, throughput_formats
from ..scheduling.placement import every_device, measured_devices, placements, throughputs
from ..schemas.planning import (
    MOST_ROWS,
    PlacementRequest,
    PlacementsDocument,
    ThroughputRequest,
    ThroughputsDocument,
)
from ..strict_json import StrictJsonRoute
from .common import BODY, INTERNAL, UNAVAILABLE, selector_of
from .turns import turn

router = APIRouter(route_class=StrictJsonRoute, tags=["planning"])

ThroughputFormat = Literal["json", "csv", "gavel", "sia", "adaptdl"]
PlacementFormat = Literal["json", "plain", "k8s-dra", "k8s-affinity", "slurm", "ray"]


class CsvResponse(Response):
    """A table with a header."""

    media_type = "text/csv"


FOR_PEOPLE = ("json", "csv", "plain")
Writer = tuple[Callable[[Sequence[Any]], Any], type[Response]]
THROUGHPUT_WRITERS: Mapping[str, Writer] = {
    "csv": (throughput_formats.to_csv, CsvResponse),
    "gavel": (throughput_formats.to_gavel, JSONResponse),
    "sia": (throughput_formats.to_sia, CsvResponse),
    "adaptdl": (throughput_formats.to_adaptdl, JSONResponse),
}
PLACEMENT_WRITERS: Mapping[str, Writer] = {
    "plain": (placement_formats.to_plain, PlainTextResponse),
    "k8s-dra": (placement_formats.to_resource_claim, JSONResponse),
    "k8s-affinity": (placement_formats.to_affinity, JSONResponse),
    "slurm": (placement_formats.to_slurm, PlainTextResponse),
    "ray": (placement_formats.to_ray, JSONResponse),
}


def _devices(selector: Selector, format: str) -> Sequence[str]:
    """The devices of a question that names none: a scheduler is told of no kind that it may not have."""
    return every_device(selector) if format in FOR_PEOPLE else measured_devices(selector)


def _answers(model: str, other: str) -> dict[str, Any]:
    """The documented 200: JSON of ours or of a scheduler's, or text."""
    ours = {"anyOf": [{"$ref": f"#/components/schemas/{model}"}, {"type": "object"}]}
    return {"content": {"application/json": {"schema": ours}, other: {"schema": {"type": "string"}}}}


@router.post(
    "/v1/throughputs",
    operation_id="throughputs",
    summary="How fast jobs run on kinds of devices",
    response_model=ThroughputsDocument,
    dependencies=[Depends(turn, scope="function")],
    responses={
        **BODY,
        200: _answers("ThroughputsDocument", "text/csv"),
        422: problem_response("The question is wrong."),
        **INTERNAL,
        **UNAVAILABLE,
    },
)
def get_throughputs(
    request: Request,
    asked: Annotated[ThroughputRequest, Body(openapi_examples=examples.THROUGHPUTS)],
    format: Annotated[ThroughputFormat, Query(description="How to answer.")] = "json",
) -> Any:
    """Time, items per second and memory of every job on every device at every batch size; what is impossible
    is a row with its reason. `format` is `json`, `csv`, or that of a scheduler: `gavel`, `sia`, `adaptdl`."""
    selector = selector_of(request)
    devices = asked.devices or _devices(selector, format)
    count = len(asked.jobs) * len(devices) * len(asked.batches or (None,))
    if count > MOST_ROWS:
        raise InvalidRequest(f"{count} questions at once: expected at most {MOST_ROWS}. Name fewer devices.")
    prices = request.app.state.prices
    rows = throughputs(selector, asked.named(), devices, asked.batches or (), prices=prices)
    if format == "json":
        return {"throughputs": [row.to_dict() for row in rows]}
    write, response = THROUGHPUT_WRITERS[format]
    return response(write(rows))


@router.post(
    "/v1/placements",
    operation_id="placements",
    summary="Rank kinds of devices for a layer",
    response_model=PlacementsDocument,
    dependencies=[Depends(turn, scope="function")],
    responses={
        **BODY,
        200: _answers("PlacementsDocument", "text/plain"),
        409: problem_response("It is nowhere known to fit; only in the formats of schedulers."),
        422: problem_response("The question is wrong."),
        **INTERNAL,
        **UNAVAILABLE,
    },
)
def get_placements(
    request: Request,
    asked: Annotated[PlacementRequest, Body(openapi_examples=examples.PLACEMENTS)],
    format: Annotated[PlacementFormat, Query(description="How to answer.")] = "json",
) -> Any:
    """The best kind of device first, with reasons. `format` is `json`, `plain` (lines of text), or what a
    scheduler takes as it is: `k8s-dra`, `k8s-affinity`, `slurm`, `ray`. These name GPUs alone."""
    selector = selector_of(request)
    devices, prices = asked.devices or _devices(selector, format), request.app.state.prices
    ranked = placements(selector, asked.query(None), devices, prices=prices)
    if format == "json":
        return {
            "placements": [
                {
                    "rank": row.rank,
                    "device": row.device.key,
                    "name": row.device.name,
                    "throughput": row.throughput.to_dict(),
                }
                for row in ranked
            ]
        }
    write, response = PLACEMENT_WRITERS[format]
    return response(write(ranked))
