"""What can be asked about."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from kernel_selector.kernels.contract import UnknownOperator
from kernel_selector.kernels.contract.errors import suggest

from ..documentation import problem_response
from ..schemas.catalogue import KnownDeviceDocument, OperatorDocument
from .common import INTERNAL, UNAVAILABLE, selector_of

router = APIRouter(tags=["catalogue"])


@router.get(
    "/v1/operators",
    operation_id="listOperators",
    response_model=list[OperatorDocument],
    responses={**INTERNAL},
)
async def list_operators(request: Request) -> list[dict[str, Any]]:
    """Every operator, with its hyperparameters and implementations."""
    return selector_of(request).operators()


@router.get(
    "/v1/operators/{name}",
    operation_id="getOperator",
    response_model=OperatorDocument,
    responses={404: problem_response("There is no such operator."), **INTERNAL},
)
async def get_operator(request: Request, name: str) -> dict[str, Any]:
    """One operator."""
    known = {operator["name"]: operator for operator in selector_of(request).operators()}
    if name not in known:
        raise UnknownOperator(f"Unknown operator {name!r}. {suggest(name, known)}")
    return known[name]


@router.get(
    "/v1/devices",
    operation_id="listDevices",
    response_model=list[KnownDeviceDocument],
    responses={**INTERNAL, **UNAVAILABLE},
)
def list_devices(request: Request) -> list[dict[str, Any]]:
    """The devices that questions can name, and how much is known about each."""
    return selector_of(request).devices()
