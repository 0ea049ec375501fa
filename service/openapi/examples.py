"""The examples of the OpenAPI document. A test sends each of them to a running service.

A problem's example holds, as `x-request`, the body that it answers. Messages are made by the code that
really says them, so that they stay true when operators are added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import SelectorError

from ..problem_details import BY_STATUS, INVALID_REQUEST, KINDS, Kind
from .example_record import LINE

PATH = "/v1/choices"
SIZES = {"hidden": 256, "batch": 32}

QUESTIONS: dict[str, dict[str, Any]] = {
    "shortest": {
        "summary": "Only what must be given; the rest is assumed, and the answer says so",
        "value": {"hyperparameters": SIZES},
    },
    "limited": {
        "summary": "An operator, a device and a memory limit",
        "value": {
            "operator": "lstm",
            "hyperparameters": {**SIZES, "seq": 50, "dtype": "float32", "mode": "training"},
            "device": "cpu",
            "memory": "1GiB",
        },
    },
    "other_device": {
        "summary": "A GPU that need not be in the machine that serves, for least memory",
        "value": {"hyperparameters": SIZES, "device": "h200", "objective": "memory"},
    },
    "compiled": {
        "summary": "A layer between others that torch.compile compiles with it",
        "value": {"operator": "lstm", "hyperparameters": SIZES, "device": "h200", "regime": "compiled"},
    },
}

BATCHES: dict[str, dict[str, Any]] = {
    "two_devices": {
        "summary": "Two layers on two kinds of GPU",
        "value": {
            "problems": [
                {"operator": "lstm", "hyperparameters": {"hidden": 1024, "batch": 64}},
                {"operator": "gru", "hyperparameters": {"hidden": 1024, "batch": 64}},
            ],
            "devices": ["h200", "nvidia-a100-sxm4-80gb"],
        },
    },
}

THROUGHPUTS: dict[str, dict[str, Any]] = {
    "batch_sizes": {
        "summary": "One job at three batch sizes on two kinds of GPU",
        "value": {
            "jobs": [{"name": "translate", "operator": "lstm", "hyperparameters": {"hidden": 1024}}],
            "devices": ["h200", "nvidia-a100-sxm4-80gb"],
            "batches": [16, 32, 64],
        },
    },
}

PLACEMENTS: dict[str, dict[str, Any]] = {
    "two_kinds": {
        "summary": "Which of two kinds of GPU for a layer",
        "value": {
            "operator": "lstm",
            "hyperparameters": {"hidden": 1024, "batch": 64},
            "devices": ["nvidia-a100-sxm4-80gb", "h200"],
        },
    },
}

RECORDS: dict[str, dict[str, Any]] = {"one": {"summary": "One record", "value": LINE + "\n"}}

NOTHING_FITS = (
    "Nothing fits into memory=1000 bytes (1000 B): "
    "the least is 15540224 bytes (14.8 MiB, measured) of unfused. "
    "Raise the limit, or ask for a smaller batch or sequence."
)


def problems(status: int) -> dict[str, dict[str, Any]]:
    """The documented problem documents of `POST /v1/choices` with this status, by name."""
    documented = {
        400: _malformed,
        415: _unannounced,
        422: _unprocessable,
        409: _unanswerable,
    }
    return documented[status]()


def _malformed() -> dict[str, dict[str, Any]]:
    detail = "The body is not JSON: Expecting value: line 1 column 1 (char 0)."
    return {"malformed_json": _example(BY_STATUS[400], detail, "hidden=256")}


def _unannounced() -> dict[str, dict[str, Any]]:
    detail = "Content-Type is 'text/plain': expected 'application/json'."
    example = _example(BY_STATUS[415], detail, "{}")
    return {"not_announced_as_json": {**example, "x-content-type": "text/plain"}}


def _unanswerable() -> dict[str, dict[str, Any]]:
    kind = KINDS["NothingFits"]
    return {"nothing_fits": _example(kind, NOTHING_FITS, {"hyperparameters": SIZES, "memory": "1kB"})}


def _unprocessable() -> dict[str, dict[str, Any]]:
    lstm = registry.operator("lstm")
    misspelt, fraction = {"hiden": 256, "batch": 32}, {"hidden": 1.5, "batch": 32}
    detail = "objective='fast': input should be 'time' or 'memory'."
    return {
        "unknown_operator": _example(
            KINDS["UnknownOperator"],
            _message(lambda: registry.operator("lstmm")),
            {"operator": "lstmm", "hyperparameters": SIZES},
        ),
        "unknown_hyperparameter": _example(
            KINDS["UnknownHyperparameter"],
            _message(lambda: lstm.problem(misspelt)),
            {"hyperparameters": misspelt},
        ),
        "invalid_hyperparameter": _example(
            KINDS["InvalidHyperparameter"],
            _message(lambda: lstm.problem(fraction)),
            {"hyperparameters": fraction},
        ),
        "invalid_request": _example(
            INVALID_REQUEST,
            detail,
            {"hyperparameters": SIZES, "objective": "fast"},
            errors=[{"pointer": "#/objective", "detail": detail}],
        ),
    }


def _example(kind: Kind, detail: str, request: object, **more: object) -> dict[str, Any]:
    document: Mapping[str, object] = {
        "type": kind.type,
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "instance": PATH,
        **more,
    }
    return {"summary": kind.title, "value": document, "x-request": request}


def _message(fail: Callable[[], object]) -> str:
    try:
        fail()
    except SelectorError as error:
        return str(error)
    raise AssertionError("an example of an error that is none")
