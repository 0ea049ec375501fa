"""Questions and choices, with units. The hyperparameters themselves are checked by the operator."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from kernel_selector.kernels.contract.record import LAUNCHED
from selector import Query

from .catalogue import DeviceDocument
from .errors import Problem
from .fields import Answer, Name, Request
from .layers import MOST_ANSWERS, Layer, Layers

Source = Literal["override", "exact", "model", "near", "extrapolated", "transfer", "default"]
MOST_DEVICES = 100
DEVICE = (
    '"cpu", "cuda:0", a known device such as "h200" (`GET /v1/devices`), or null for the default device of '
    "the machine that serves."
)


class ChooseRequest(Layer):
    """Which implementation of an operator is best for these hyperparameters on this device?"""

    device: Name | None = Field(None, description=DEVICE)


class BatchRequest(Request):
    """The same question about every one of some layers on every one of some devices."""

    problems: Layers
    devices: list[Name | None] = Field(
        [None], min_length=1, max_length=MOST_DEVICES, description=f"Each: {DEVICE}"
    )

    @model_validator(mode="after")
    def _few_enough(self) -> Self:
        count = len(self.problems) * len(self.devices)
        if count > MOST_ANSWERS:
            raise ValueError(f"{count} questions at once: expected at most {MOST_ANSWERS}")
        return self

    def queries(self) -> list[Query]:
        """Queries of the batch: the first layer on every device, then the second, and so on."""
        return [layer.query(device) for layer in self.problems for device in self.devices]


class Candidate(Answer):
    """One implementation that was considered. Figures are null where nothing is known."""

    name: str
    default: bool = Field(description="Whether it is what the framework offers without us.")
    source: str = Field(
        description='Where the figures come from: exact, model, near, extrapolated, transfer; "" without any.'
    )
    time_ms: float | None = Field(description="Time of one run, in milliseconds.")
    time_interval_ms: tuple[float, float] | None = Field(description="Low and high, in milliseconds.")
    memory_bytes: int | None = Field(description="Peak beyond parameters and inputs, in bytes.")
    memory_interval_bytes: tuple[int, int] | None = Field(description="Low and high, in bytes.")
    excluded: str | None = Field(description="Why it cannot be chosen; null when it can.")
    note: str = Field(description="Why a better figure was not enough; else empty.")


class SimilarMeasurement(Answer):
    """The measured problem that is most like the one that was asked about."""

    device: str = Field(description="The name of the device that it was measured on.")
    values: dict[str, int | float | bool | str | None] = Field(
        description="Its own hyperparameters where they differ from those asked about, by name."
    )
    doublings: float = Field(
        description="How far it is, in log2 of the sizes; another word counts 0.5, another mode or a dtype "
        "of another width 4 more."
    )
    times_ms: dict[str, float] = Field(description="Its times by implementation, the fastest first.")
    shipped: bool = Field(description="Whether all of these came with the package.")


class Basis(Answer):
    """The measurements that the figures of the chosen implementation rest on."""

    source: str = Field(
        description="That of its figures: exact, model, near, extrapolated, transfer; counted where bytes "
        'alone were counted from the equations, "" where nothing is known.'
    )
    own_measurements: int = Field(description="How many measurements of one's own stand behind them.")
    shipped_measurements: int = Field(description="How many that came with the package do.")
    learned: bool = Field(
        description="Whether a cost model has learned from these; else they are of the most similar problem."
    )
    most_similar: SimilarMeasurement | None = Field(description="null where nothing was measured.")


class ChoiceDocument(Answer):
    """The choice, the evidence for it, and every other candidate."""

    problem: dict[str, int | float | bool | str | None] = Field(
        description="The operator and all hyperparameters, completed and in canonical order; null where a "
        "value is missing, of an imported operator."
    )
    assumed: list[str] = Field(description="Hyperparameters that were left to their defaults.")
    operator_assumed: bool = Field(description='True when the request named none, and "lstm" was assumed.')
    device: DeviceDocument
    torch_device: str | None = Field(description="Where the serving machine has it; null when it has not.")
    implementation: str = Field(description="What to use.")
    source: Source = Field(description="What the choice rests on.")
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
    basis: Basis
    caveats: list[str] = Field(description="What weakens the answer, in words.")
    snapshot: str = Field(description="Identity of the measurements that were used.")
    model_version: str | None = Field(description="Version of the cost model that was used.")
    regime: Literal["launched", "compiled"] = Field(
        "launched",
        description="That of the question; left out where it is launched.",
        exclude_if=LAUNCHED.__eq__,
    )


class ChoiceSummary(Answer):
    """The choice and the evidence for it, without the figures of the other candidates."""

    implementation: str = Field(description="What to use.")
    source: Source = Field(description="What the choice rests on.")
    time_ms: float | None = Field(description="Of one run, in milliseconds.")
    time_interval_ms: tuple[float, float] | None = Field(description="Low and high, in milliseconds.")
    memory_bytes: int | None = Field(description="Peak beyond parameters and inputs, in bytes.")
    memory_interval_bytes: tuple[int, int] | None = Field(description="Low and high, in bytes.")
    runner_up: str | None = Field(description="The next best candidate.")
    margin: float | None = Field(description="How much worse the runner-up is, relative to the choice.")
    exclusions: dict[str, str] = Field(description="Why the others cannot be chosen, by name.")
    caveats: list[str] = Field(description="What weakens the answer, in words.")
    snapshot: str = Field(description="Identity of the measurements that were used.")
    model_version: str | None = Field(description="Version of the cost model that was used.")


class BatchEntry(Answer):
    """What was found for one layer on one device: a choice, or the problem that there was."""

    problem: int = Field(description="Index of the layer in the request.")
    device: str | None = Field(description="As in the request.")
    choice: ChoiceSummary | None
    error: Problem | None


class BatchDocument(Answer):
    """All answers of a batch: the first layer on every device, then the second, and so on."""

    answers: list[BatchEntry]
