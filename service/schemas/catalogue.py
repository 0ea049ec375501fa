"""Schemas of the catalogue and of the service's state. Sizes in bytes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .fields import Answer


class DeviceDocument(Answer):
    """A device. null: not known. Sizes in bytes, rates per second, latencies in microseconds."""

    name: str
    kind: str = Field(description="Torch's device type: cuda or cpu.")
    vendor: str
    host: str = Field(description='Processor that launches the work; "" when not of the serving machine.')
    compute_capability: tuple[int, int] | None
    multiprocessors: int | None = Field(description="Streaming multiprocessors, or cores used on a CPU.")
    memory_bytes: int | None = Field(description="Memory of the device, in bytes.")
    l2_bytes: int | None
    shared_bytes_per_multiprocessor: int | None
    copy_bytes_per_s: float | None = Field(description="Measured copy rate, read plus written.")
    matmul_flops_per_s: dict[str, float] = Field(description="Measured rate of matrix products, by dtype.")
    launch_us: float | None = Field(description="Measured time of one small operation through torch.")
    barrier_us: float | None = Field(description="Measured barrier over all multiprocessors.")


class KnownDeviceDocument(DeviceDocument):
    """A device that questions can name."""

    key: str = Field(description="The name to ask with.")
    measured: bool = Field(description="Whether there are measurements of it.")
    torch_device: str | None = Field(description="Its name in torch when it is in the serving machine.")


class HyperparameterDocument(Answer):
    """One hyperparameter of an operator."""

    name: str
    help: str
    expected: str = Field(description="What a valid value looks like, in words.")
    default: int | float | bool | str | None = Field(
        description='Value when not given; "=hidden": that of hidden; null: it must be given.'
    )
    aliases: list[str] = Field(description="Other names of it, as torch spells them.")


class ImplementationDocument(Answer):
    """One way to compute an operator."""

    name: str
    summary: str
    default: bool = Field(description="Whether it is what the framework offers without us.")


class OperatorDocument(Answer):
    """An operator, what it takes, and the ways to compute it."""

    name: str
    title: str
    imported: bool = Field(description="Whether it is known by measurements of others alone.")
    devices: list[str] | None = Field(description="Where an imported operator was measured.")
    default_implementation: str | None = Field(
        description="What the framework offers without us; null for imported operators."
    )
    hyperparameters: list[HyperparameterDocument]
    implementations: list[ImplementationDocument]


class VersionDocument(Answer):
    """An implementation as it is now."""

    operator: str
    name: str
    version: str = Field(description="Hash of the sources that decide what it does.")
    summary: str
    default: bool = Field(description="Whether it is what the framework offers without us.")


class ModelDocument(Answer):
    """A cost model."""

    operator: str
    version: str
    schema_: int = Field(alias="schema", description="Layout of its arrays.")
    arrays_bytes: int = Field(description="Their size, in bytes.")
    created_at: str = Field(description="When it was stored, in UTC.")
    evaluation: dict[str, Any] = Field(description="How well it chooses on problems that it had not seen.")
    shipped: bool = Field(description="Whether it comes with the package, or is in the database.")


class Health(Answer):
    """The process is alive."""

    status: Literal["ok"]


class Readiness(Answer):
    """The service can answer from evidence."""

    status: Literal["ready", "stale"] = Field(
        description="`stale`: from what was loaded before the database went away."
    )
    records: int = Field(description="Measurements in the database.")
    models: int = Field(description="Cost models in the database.")
    shipped_records: int = Field(description="Measurements that come with the package; 0: turned off.")
    snapshot: str = Field(description="Identity of the measurements that answers are based on.")
    components: dict[str, str] = Field(
        description="`ok`, or what is wrong, of the database, of what ships, and of each cost model in use."
    )
