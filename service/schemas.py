"""What goes in and out as JSON, with units. The hyperparameters themselves are checked by the operator."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

LONGEST_TEXT = 200  # characters
AMOUNT_PATTERN = (
    r"^[1-9][0-9]{0,11}([.][0-9]{1,3})?( ?([kMGT]|[KMGT]i)?B)?$"  # documented; `parse_bytes` decides
)
# what `Selector.choose` takes besides hyperparameters; a request must not reach these by another door
FIELDS = frozenset({"operator", "device", "memory", "objective", "override", "database"})


def _scalar(value: Any) -> Any:
    if isinstance(value, list | dict):
        raise ValueError("expected a number, a text, true or false")
    if isinstance(value, str) and not (len(value) <= LONGEST_TEXT and value.isprintable()):
        raise ValueError(f"expected a printable text of at most {LONGEST_TEXT} characters")
    return value


def _no_field(name: str) -> str:
    if name in FIELDS:
        beside = ", ".join(sorted(FIELDS - {"database"}))
        raise ValueError(f"this is no hyperparameter; fields beside 'hyperparameters' are {beside}")
    return name


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("expected printable characters")
    return value


def _amount(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    text = isinstance(value, str) and 1 <= len(value) <= LONGEST_TEXT and value.isprintable()
    if not (whole or text):
        raise ValueError("expected bytes as a whole number of at least 1, or a text such as '1GiB'")
    return value


Name = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT), AfterValidator(_printable)]
HyperparameterName = Annotated[Name, AfterValidator(_no_field)]
Scalar = Annotated[Any, AfterValidator(_scalar)]
AMOUNT = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": AMOUNT_PATTERN}]}
Amount = Annotated[Any, AfterValidator(_amount), WithJsonSchema(AMOUNT)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ChooseRequest(_Request):
    """Which implementation of an operator is best for these hyperparameters on this device?"""

    hyperparameters: dict[HyperparameterName, Scalar] = Field(
        max_length=64,
        description="By name, as `GET /v1/operators` lists them; torch's long names are accepted too.",
    )
    operator: Name | None = Field(
        None, description='Operator; null means "lstm", and the answer says that it was assumed.'
    )
    device: Name | None = Field(
        None,
        description='"cpu", "cuda:0", a known device such as "h200" (`GET /v1/devices`), or null for the '
        "default device of the machine that serves.",
    )
    memory: Amount | None = Field(
        None,
        description="Most memory beyond parameters and inputs: bytes, or a text such as `1GiB`, `512MB`.",
    )
    objective: Literal["time", "memory"] = Field("time", description="What to make small.")
    override: Name | None = Field(None, description="Name of an implementation to use whatever the evidence.")


class Candidate(_Answer):
    """One implementation that was considered. Figures are null where nothing is known."""

    name: str
    default: bool = Field(description="Whether it is what the framework offers without us.")
    source: str = Field(description='Where the figures come from: exact, near or model; "" without figures.')
    time_ms: float | None = Field(description="Time of one run, in milliseconds.")
    time_interval_ms: tuple[float, float] | None = Field(description="Low and high, in milliseconds.")
    memory_bytes: int | None = Field(description="Peak beyond parameters and inputs, in bytes.")
    memory_interval_bytes: tuple[int, int] | None = Field(description="Low and high, in bytes.")
    excluded: str | None = Field(description="Why it cannot be chosen; null when it can.")
    note: str = Field(description="Why a better figure was not enough; else empty.")


class DeviceDocument(_Answer):
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


class ChoiceDocument(_Answer):
    """The choice, the evidence for it, and every other candidate."""

    problem: dict[str, int | float | bool | str] = Field(
        description="The operator and all hyperparameters, completed and in canonical order."
    )
    assumed: list[str] = Field(description="Hyperparameters that were left to their defaults.")
    operator_assumed: bool = Field(description='True when the request named none, and "lstm" was assumed.')
    device: DeviceDocument
    torch_device: str | None = Field(description="Where the serving machine has it; null when it has not.")
    implementation: str = Field(description="What to use.")
    source: Literal["override", "exact", "near", "model", "default"] = Field(
        description="What the choice rests on."
    )
    objective: Literal["time", "memory"]
    time_ms: float | None = Field(
        description="Of forward and backward in training, of forward in inference, in milliseconds."
    )
    time_interval_ms: tuple[float, float] | None = Field(description="Low and high, in milliseconds.")
    memory_bytes: int | None = Field(description="Peak beyond parameters and inputs, in bytes.")
    memory_interval_bytes: tuple[int, int] | None = Field(description="Low and high, in bytes.")
    memory_limit_bytes: int | None = Field(description="The limit that was asked for, in bytes.")
    runner_up: str | None = Field(description="The next best candidate.")
    margin: float | None = Field(
        description="How much worse the runner-up is, relative to the choice, by the objective: 0.1 is 10 %. "
        "Negative when it looks better, but within the noise."
    )
    candidates: list[Candidate]
    caveats: list[str] = Field(description="What weakens the answer, in words.")
    snapshot: str = Field(description="Identity of the measurements that were used.")
    model_version: str | None = Field(description="Version of the cost model that was used.")


class HyperparameterDocument(_Answer):
    """One hyperparameter of an operator."""

    name: str
    help: str
    expected: str = Field(description="What a valid value looks like, in words.")
    default: int | float | bool | str | None = Field(
        description='Value when not given; "=hidden": that of hidden; null: it must be given.'
    )
    aliases: list[str] = Field(description="Other names of it, as torch spells them.")


class ImplementationDocument(_Answer):
    """One way to compute an operator."""

    name: str
    summary: str
    default: bool = Field(description="Whether it is what the framework offers without us.")


class OperatorDocument(_Answer):
    """An operator, what it takes, and the ways to compute it."""

    name: str
    title: str
    default_implementation: str = Field(description="What the framework offers without us.")
    hyperparameters: list[HyperparameterDocument]
    implementations: list[ImplementationDocument]


class Health(_Answer):
    """The process is alive."""

    status: Literal["ok"]


class Readiness(_Answer):
    """The service can answer from evidence."""

    status: Literal["ready"]
    records: int = Field(description="Measurements in the database.")
    models: int = Field(description="Cost models in the database.")
    snapshot: str = Field(description="Identity of the measurements that answers are based on.")


class FieldProblem(_Answer):
    """One fault of a request."""

    pointer: str = Field(description="Where in the body, as a JSON pointer in a URI fragment.")
    detail: str


class Problem(_Answer):
    """An RFC 9457 problem document."""

    type: str = Field(description="Stable identifier of the class of errors.")
    title: str
    status: int
    detail: str = Field(description="What was wrong, naming the value, and the way out.")
    instance: str = Field(description="Path of the request.")
    errors: list[FieldProblem] | None = Field(None, description="Each fault of an invalid request.")
