"""The examples of corrections in the OpenAPI document. A test sends each of them to a running service."""

from __future__ import annotations

from typing import Any

# nothing of these is there: the answer says where to look for what is
RETRACTIONS: dict[str, dict[str, Any]] = {
    "author": {
        "summary": "All that a token sent since a time",
        "value": {
            "author": "worker-9",
            "since": "2026-11-27T10:00:00+00:00",
            "reason": "its clock ran at half speed",
        },
        "x-status": 422,
    },
}
RELEASES: dict[str, dict[str, Any]] = {
    "ids": {
        "summary": "Two records that were set aside",
        "value": {"ids": [3, 4], "reason": "measured again by hand: they are right"},
        "x-status": 422,
    },
}
UNDOINGS: dict[str, dict[str, Any]] = {
    "entry": {
        "summary": "A retraction that was a mistake",
        "value": {"entry": 17, "reason": "it was worker-8"},
        "x-status": 422,
    },
}
