"""The answer: which implementation, how fast, how large, on what evidence, and why not the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from json import dumps
from typing import TYPE_CHECKING, Any

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, UnknownDevice

from .candidates import Candidate, Candidates, Interval
from .errors import NotBuildable
from .explain import explain

if TYPE_CHECKING:
    from torch import nn

    from .shown import Shown

SUMMARY = (
    "implementation",
    "source",
    "time_ms",
    "time_interval_ms",
    "memory_bytes",
    "memory_interval_bytes",
    "runner_up",
    "margin",
    "snapshot",
    "model_version",
)
# what a choice that was settled together with others has in their columns, until somebody looks
LATER = {*SUMMARY, "candidates"} - {"source", "snapshot", "model_version"}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The implementation to use for a problem on a device, with its evidence.

    Times are of forward and backward in training, of forward in inference. Memory is at the peak, beyond
    parameters and inputs. Intervals: of measurements, from the time itself to the 80th percentile of its
    samples; of the cost model, the range that held for 90 % of measurements it had not seen. `margin` is how
    much worse the runner-up is, relative to the choice, by the objective; negative when it looks better but
    within the noise.
    """

    problem: Problem
    device: Device
    implementation: str
    source: str
    time_ms: float | None
    time_interval_ms: Interval | None
    memory_bytes: int | None
    memory_interval_bytes: tuple[int, int] | None
    runner_up: str | None
    margin: float | None
    candidates: Candidates
    objective: str
    memory_limit_bytes: int | None
    snapshot: str
    model_version: str | None
    caveats: tuple[str, ...]
    operator_assumed: bool
    torch_device: str | None

    @classmethod
    def made(cls, fields: dict[str, Any]) -> Choice:
        """One with these fields; hundreds are made for a batch, and `__init__` takes three times as long."""
        choice = cls.__new__(cls)
        object.__setattr__(choice, "__dict__", fields)
        return choice

    def __getattr__(self, name: str) -> Any:
        # only reached for names that are no field yet; copy and pickle look for names before there are fields
        kept = vars(self)
        if name in LATER and "_shown" in kept:
            shown, number = kept["_shown"]
            kept.update(shown.fields(number))
            return kept[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone, without the other choices that this one was settled with."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @property
    def shown(self) -> tuple[Shown, int] | None:
        """Of one that was settled together with others: all of them in columns, and its number there."""
        return vars(self).get("_shown")

    @property
    def may_be_beaten(self) -> bool:
        """Whether another candidate may be faster, as far as its interval goes, or has no time at all."""
        if found := self.shown:
            shown, number = found
            return shown.may_be_beaten[number]
        interval_ms = self.time_interval_ms
        return self.candidates.lowest_ms() < (math.inf if interval_ms is None else interval_ms[1])

    def build(self, device: str | None = None) -> nn.Module:
        """The chosen module, with fresh parameters, in the problem's dtype and mode.

        On `device` (of torch), else on the device that was asked about, or on the CPU when that one is
        not in this machine. Raises UnknownDevice for a torch device that is not there, and NotBuildable
        for an imported operator.
        """
        if self.problem.operator not in registry.operators():
            raise NotBuildable(
                f"{self.problem.operator} is an imported operator: its kernels are not part of this package. "
                f"Call {self.implementation!r} where it lives; `choice.implementation` has the name."
            )
        import torch

        target = device or self.torch_device or "cpu"
        module = registry.implementation(self.problem.operator, self.implementation).build(self.problem)
        try:
            module = module.to(device=target, dtype=getattr(torch, self.problem["dtype"]))
        except (RuntimeError, AssertionError) as error:
            raise UnknownDevice(f"Cannot build on torch device {target!r}: {error}") from error
        return module.train(self.problem["mode"] == "training")

    def explain(self) -> str:
        """The whole answer as plain text."""
        return explain(self)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        data["problem"] = {"operator": self.problem.operator, **self.problem.as_dict}
        data["assumed"] = list(self.problem.assumed)
        data["device"] = self.device.to_dict()
        data["candidates"] = [candidate._asdict() for candidate in self.candidates]
        data["caveats"] = list(self.caveats)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Choice:
        """What `to_dict` wrote on another machine; so it has no `torch_device` here."""
        given = dict(data)
        values = dict(given.pop("problem"))
        problem = Problem(values.pop("operator"), tuple(values.items()), tuple(given.pop("assumed")))
        candidates = Candidates.of(Candidate(**_with_tuples(item)) for item in given.pop("candidates"))
        return cls(
            **_with_tuples(given)
            | {
                "problem": problem,
                "device": Device.from_dict(given["device"]),
                "candidates": candidates,
                "caveats": tuple(given["caveats"]),
                "torch_device": None,
            }
        )

    def summary(self) -> dict[str, Any]:
        """JSON-ready and short, for answers by the hundred: without problem, device and other figures."""
        data = {name: getattr(self, name) for name in SUMMARY}
        data["exclusions"] = self.candidates.exclusions()
        data["caveats"] = list(self.caveats)
        return data

    @cached_property
    def json(self) -> bytes:
        """`to_dict` as JSON in UTF-8; made once, because a choice is asked for again and again."""
        return dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _with_tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """The intervals, which JSON has as lists, as they were."""
    return {
        name: tuple(value) if isinstance(value, list) and "interval" in name else value
        for name, value in data.items()
    }
