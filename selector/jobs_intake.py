"""Tasks for workers that reach the database through the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernel_selector.kernels.contract import CorruptRecord, Device, Environment

from .errors import InvalidRequest
from .intake import Intake
from .jobs import KINDS
from .jobs_queue import Claimant, Offer, claim, ending


def claimed(intake: Intake, asked: Mapping[str, Any]) -> Offer:
    """A task for the worker that asks: its name, device, environment and lease, as JSON has them.

    Raises InvalidRequest for a device or an environment that is none, and the errors of the database.
    """
    try:
        device = Device.from_dict(asked["device"])
        environment = Environment.from_dict(asked["environment"])
    except (CorruptRecord, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidRequest(f"The device or the environment is none: {error}") from error
    if device.kind not in KINDS:
        raise InvalidRequest(f"device.kind={device.kind!r}: expected one of {', '.join(KINDS)}.")
    claimant = Claimant(
        name=asked["worker"], device=device, environment=environment, lease_s=asked["lease_s"]
    )
    return claim(intake.database, claimant)


def finish(intake: Intake, ended: Mapping[str, Any], lines: Sequence[str], author: str) -> dict[str, int]:
    """Store a task's records and end its claim, in one transaction; returns what became of the records.

    `ended` has task, lease, outcome and reason, of which one line of printable text is kept. Raises TaskLost,
    NotRecords and InvalidRequest, and the errors of the database; then nothing is stored.
    """
    reason = "".join(one if one.isprintable() else " " for one in ended["reason"]).strip()
    conclude = ending(ended["task"], ended["lease"], ended["outcome"], reason=reason, records=len(lines))
    if not lines:
        with intake.database.write() as connection:
            conclude(connection)
        return {"received": 0, "added": 0, "known": 0, "quarantined": 0}
    receipt = intake.take(lines, author, first=conclude)
    return {
        "received": receipt.received,
        "added": receipt.added,
        "known": receipt.known,
        "quarantined": len(receipt.quarantined),
    }
