"""Routes of the catalogue: operators, devices, implementations, models."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from kernel_selector.kernels.contract import UnknownOperator
from kernel_selector.kernels.contract.errors import suggest
from selector.selection.catalogue import implementations

from ..openapi.document import problem_response
from ..schemas.catalogue import (
    KnownDeviceDocument,
    ModelDocument,
    OperatorDocument,
    VersionDocument,
)
from ..strict_json import StrictRoute
from .common import CONDITIONAL, INTERNAL, UNAVAILABLE, conditional, selector_of

router = APIRouter(route_class=StrictRoute, tags=["catalogue"])


@router.get(
    "/v1/operators",
    operation_id="listOperators",
    response_model=list[OperatorDocument],
    responses={**CONDITIONAL, **INTERNAL},
)
def list_operators(request: Request) -> Response:
    """Every operator, with its hyperparameters and implementations; those of imported measurements last."""
    return conditional(request, selector_of(request).operators())


@router.get(
    "/v1/operators/{name}",
    operation_id="getOperator",
    response_model=OperatorDocument,
    responses={404: problem_response("There is no such operator."), **CONDITIONAL, **INTERNAL},
)
def get_operator(request: Request, name: str) -> Response:
    """One operator."""
    known = {operator["name"]: operator for operator in selector_of(request).operators()}
    if name not in known:
        raise UnknownOperator(f"Unknown operator {name!r}. {suggest(name, known)}")
    return conditional(request, known[name])


@router.get(
    "/v1/devices",
    operation_id="listDevices",
    response_model=list[KnownDeviceDocument],
    responses={**CONDITIONAL, **INTERNAL, **UNAVAILABLE},
)
def list_devices(request: Request) -> Response:
    """The devices that questions can name, and how much is known about each."""
    return conditional(request, selector_of(request).devices())


@router.get(
    "/v1/implementations",
    operation_id="listImplementations",
    response_model=list[VersionDocument],
    responses={**CONDITIONAL, **INTERNAL},
)
async def list_implementations(request: Request) -> Response:
    """Every implementation of every operator, with the version that measurements of it must have to count."""
    return conditional(request, implementations())


@router.get(
    "/v1/models",
    operation_id="listModels",
    response_model=list[ModelDocument],
    responses={**CONDITIONAL, **INTERNAL},
)
def list_models(request: Request) -> Response:
    """The cost models in the database, the latest first, then those that come with the package: of each
    operator the first is asked, and the one that ships where that one has not seen a problem's like."""
    return conditional(request, selector_of(request).status()["models"])
