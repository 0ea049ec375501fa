"""Profiling jobs, and what workers say and are told."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .choices import MOST_DEVICES
from .fields import LONGEST_TEXT, Answer, Hyperparameters, Name, Request
from .layers import MOST_ANSWERS
from .measurements import KNOWN_WAITING, RECORD, RETRACTED, WAITING

State = Literal["queued", "running", "done", "failed", "cancelled"]
LARGEST_ID = 2**63 - 1
Number = Annotated[int, Field(ge=1, le=LARGEST_ID, strict=True)]
Lease = Annotated[str, Field(pattern="^[0-9a-f]{32}$", description="The secret of the claim.")]


class ProblemToMeasure(Request):
    """One problem."""

    hyperparameters: Hyperparameters


class ProfilingJobRequest(Request):
    """Measure every problem on every device."""

    operator: Name
    problems: list[ProblemToMeasure] = Field(min_length=1, max_length=MOST_ANSWERS)
    devices: list[Name] = Field(
        min_length=1,
        max_length=MOST_DEVICES,
        description='"cpu" or "cuda" for any of the kind, else known devices (`GET /v1/devices`).',
    )
    policy: Name = Field("quick", description="How carefully to measure, such as quick or thorough.")
    implementations: list[Name] | None = Field(
        None, min_length=1, max_length=MOST_DEVICES, description="Null: all that each worker has."
    )
    again: bool = Field(False, description="Measure also what has finished records.", strict=True)
    max_attempts: Annotated[int, Field(strict=True)] = Field(
        3, ge=1, le=100, description="How often a task is tried."
    )


class ProfilingJobDocument(Answer):
    """A job: what was asked for and how far it is."""

    id: int
    state: State = Field(description="failed: some task has, and no other is left.")
    operator: str
    devices: list[str] = Field(description="Keys of devices, or cpu and cuda.")
    policy: str
    implementations: list[str] | None
    again: bool
    author: str = Field(description="Name of the token, or of the account, that made it.")
    created_at: str = Field(description="In UTC, by the database's clock.")
    finished_at: str | None = Field(description="When its last task ended; null while some have not.")
    tasks: dict[State, int] = Field(description="Its progress: tasks by state.")
    records: int = Field(description="Measurements that it has brought.")
    reasons: list[str] | None = Field(
        description="Some of the reasons why tasks failed, by workers; null without the scope `admin`."
    )


class ProfilingJobPage(Answer):
    """Some jobs."""

    items: list[ProfilingJobDocument]
    next: str | None = Field(description="Cursor of the next page; null after the last.")


class ProfilingTaskDocument(Answer):
    """A task of a job: one problem on one kind of device."""

    id: int
    device: str
    problem: str = Field(description="The problem's key.")
    state: State
    attempts: int = Field(description="Times that it was claimed and not given back.")
    expiries: int = Field(description="Leases that ran out.")
    reason: str | None = Field(
        description="Why the last attempt came to nothing, or brought nothing, by its worker; empty if it "
        "did not, null without the scope `admin`."
    )
    owner: str | None = Field(description="The worker that had it last; null without the scope `admin`.")
    records: int
    finished_at: str | None


class ProfilingTaskPage(Answer):
    """Some tasks."""

    items: list[ProfilingTaskDocument]
    next: str | None = Field(description="Cursor of the next page; null after the last.")


class ClaimRequest(Request):
    """A worker asks for a task that its device can do."""

    worker: Name = Field(description="For people, to find it: a host's name, for example.")
    device: dict[str, Any] = Field(description="As the records of its measurements will have it.")
    environment: dict[str, Any] = Field(description="As the records of its measurements will have it.")
    lease_s: float = Field(
        60.0, ge=1, le=3600, strict=True, description="Seconds without a heartbeat that end the claim."
    )


class AssignmentDocument(Answer):
    """A task to work on."""

    task: int
    lease: Lease
    lease_s: float
    job: int
    problem: dict[str, Any] = Field(description="`operator` and complete `hyperparameters`.")
    policy: str
    implementations: list[str] | None = Field(description="Null: all that the worker has.")
    finished: list[list[str]] = Field(description="[name, version] of what has records already.")


class OfferDocument(Answer):
    """A task, or none."""

    assignment: AssignmentDocument | None
    pending: int = Field(description="Without a task: how many others work on; they may come back.")


class HeartbeatRequest(Request):
    """A worker is still at it."""

    task: Number
    lease: Lease


class FinishRequest(HeartbeatRequest):
    """A worker ends its claim."""

    outcome: Literal["done", "returned", "failed"] = Field(
        description="`returned`: queued again, and the attempt does not count; five in a row without records "
        "are a failure."
    )
    reason: Annotated[str, Field(max_length=5 * LONGEST_TEXT)] = Field(
        "", description="Of a failure or a return, or why a task that is done brings no records."
    )
    records: list[dict[str, Any]] = Field([], max_length=1000, description=f"Each: {RECORD}")


class FinishDocument(Answer):
    """What became of a task's records."""

    received: int
    added: int = Field(description="New ones.")
    known: int = Field(description="Those that were there already: of an answer that was lost, for example.")
    quarantined: int = Field(description="Those that contradict what is known: see `GET /v1/quarantine`.")
    waiting: int = WAITING
    known_waiting: int = KNOWN_WAITING
    known_retracted: int = RETRACTED


class Renewed(Answer):
    """The lease holds for its full length from now."""

    task: int
