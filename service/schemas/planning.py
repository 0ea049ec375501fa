"""Throughputs and placements, with units."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from ..scheduling.placement import Job
from .choices import MOST_DEVICES
from .fields import Answer, Name, Request
from .layers import MOST_ANSWERS, Layer

DEVICES = (
    "Names as of `GET /v1/devices`; left out: all of these, but in the format of a scheduler those with "
    "measurements."
)
MOST_ROWS = 8000  # of a table: all known devices, twenty jobs, eight batch sizes


def _whole(value: Any) -> Any:
    if isinstance(value, str | bool):
        raise ValueError("expected a whole number")
    return value


# the check of the raw value comes last in here, which is first of all: `minimum` stays in the schema
Batch = Annotated[int, Field(ge=1, le=2**31 - 1), BeforeValidator(_whole)]
Devices = Annotated[list[Name] | None, Field(min_length=1, max_length=MOST_DEVICES, description=DEVICES)]


class JobDocument(Layer):
    """A layer that is run again and again."""

    name: Name | None = Field(None, description="To find it in the answer; left out: operator and index.")


class ThroughputRequest(Request):
    """How fast is each job on each kind of device at each batch size?"""

    jobs: list[JobDocument] = Field(min_length=1, max_length=MOST_ANSWERS)
    devices: Devices = None
    batches: list[Batch] | None = Field(
        None,
        min_length=1,
        max_length=MOST_ANSWERS,
        description="Values of the hyperparameter `batch`; left out: that of each job.",
    )

    @model_validator(mode="after")
    def _few_enough(self) -> Self:
        count = len(self.jobs) * len(self.devices or [""]) * len(self.batches or [1])
        if count > MOST_ROWS:
            raise ValueError(f"{count} questions at once: expected at most {MOST_ROWS}")
        names = [job.name for job in self.named()]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(
                f"two jobs have the same name {twice!r}; those without one get operator and index"
            )
        return self

    def named(self) -> list[Job]:
        """The jobs as the selector takes them."""
        return [
            Job(name=job.name or f"{job.operator or 'lstm'}-{index}", query=job.query(None))
            for index, job in enumerate(self.jobs)
        ]


class ThroughputDocument(Answer):
    """A job on a kind of device at one batch size. null: not known."""

    job: str
    device: str = Field(description="Key of the device.")
    batch: int | None = Field(description="Items of one run; null for operators without a batch.")
    feasible: bool | None = Field(description="Whether it can be computed there and fits; null: not known.")
    reason: str = Field(description="Why it is not feasible, or what the figures rest on.")
    implementation: str | None = Field(description="What to use there.")
    source: str | None = Field(description="What the choice rests on.")
    time_ms: float | None = Field(description="Of one run, in milliseconds.")
    time_low_ms: float | None = Field(description="Low end of its interval, in milliseconds.")
    time_high_ms: float | None = Field(description="High end of its interval, in milliseconds.")
    items_per_s: float | None = Field(description="Items of the batch per second.")
    peak_bytes: int | None = Field(description="Memory beyond parameters and inputs, in bytes.")
    peak_high_bytes: int | None = Field(description="High end of its interval, in bytes.")
    cost_per_item: float | None = Field(
        description="Of one item of the batch, where the setting `prices` has the device."
    )
    snapshot: str = Field(description="Identity of the measurements that were used.")
    model_version: str | None = Field(description="Version of the cost model that was used.")


class ThroughputsDocument(Answer):
    """Every job on every device at every batch size, in this order."""

    throughputs: list[ThroughputDocument]


class PlacementRequest(Layer):
    """Which kind of device is the best for a layer?"""

    devices: Devices = None


class PlacementDocument(Answer):
    """One kind of device for the layer."""

    rank: int | None = Field(description="1 is the best; null: it cannot be there.")
    device: str = Field(description="Key of the device.")
    name: str = Field(description="Its name.")
    throughput: ThroughputDocument


class PlacementsDocument(Answer):
    """The devices, best first; those where it cannot be are last."""

    placements: list[PlacementDocument]
