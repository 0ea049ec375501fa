"""One measurement: what was run, where, whether it was right, how long it took and how much it held."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from types import NoneType
from typing import Any, Literal, get_args

from .checks import check_finite, check_type, check_whole
from .device import Device
from .environment import Environment
from .errors import CorruptRecord, shorten
from .problem import Problem
from .timing import Timing

SCHEMA_VERSION = 1
TIMINGS = ("forward", "forward_backward", "graph_forward", "graph_forward_backward")
Regime = Literal["launched", "graph", "compiled"]
REGIMES: tuple[str, ...] = get_args(Regime)
LAUNCHED, COMPILED = "launched", "compiled"
EARLIEST, LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Status(StrEnum):
    """Outcome of a measurement."""

    OK = "ok"
    INCORRECT = "incorrect"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """Verdict of the correctness gate on a candidate.

    `worst_error_ratio` is the largest error over the allowed error among all outputs and gradients (at
    most 1 when passed); None when there is no number, and then `detail` says why: the gate was not
    reached, or something is missing, not finite or of the wrong shape.
    """

    passed: bool
    worst_error_ratio: float | None
    detail: str = ""

    def __post_init__(self) -> None:
        check_type("GateResult", bool, passed=self.passed)
        check_type("GateResult", str, detail=self.detail)
        if self.passed and self.worst_error_ratio is None:
            raise CorruptRecord("GateResult.passed without a worst_error_ratio: run the gate first.")
        check_finite("GateResult", worst_error_ratio=self.worst_error_ratio)
        if self.passed and self.worst_error_ratio is not None and self.worst_error_ratio > 1:
            raise CorruptRecord(
                f"GateResult.passed with worst_error_ratio={self.worst_error_ratio!r} above 1."
            )

    @classmethod
    def not_reached(cls, reason: str) -> GateResult:
        """The result of a candidate that ended before it could be judged."""
        return cls(passed=False, worst_error_ratio=None, detail=reason)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes beyond parameters and inputs: at the peak, and held between forward and backward.

    `kept_argument_bytes` is what of the arguments has to stay for backward besides, where nobody else keeps
    them: 0 of a layer that needs its output alone. None where it was not counted.
    """

    peak_bytes: int
    held_bytes: int
    workspace_bytes: int  # peak of the forward pass beyond what is held after it
    kept_argument_bytes: int | None = None

    def __post_init__(self) -> None:
        parts = dict(vars(self))
        check_whole("Memory", kept_argument_bytes=parts.pop("kept_argument_bytes"))
        check_whole("Memory", False, **parts)


@dataclass(frozen=True, kw_only=True)
class Record:
    """A measurement. Cannot be made without a gate result; `ok` needs a passed gate, times and bytes.

    `forward` is one forward pass in the problem's mode; `forward_backward` a forward and a backward pass
    (training only); the `graph_` pair the same replayed as a CUDA graph, where it could be captured.
    `policy` names how times were taken; times under different policies are not compared. `gate_revision`
    says which gate judged it, from 1; None, which older records have, is the first.

    `regime` says what `forward`, `forward_backward` and `memory` are of: the layer `launched` by itself, its
    replay as a `graph`, or the layer `compiled` with neighbours (`kernels/measure/neighbours.py`). Times of
    different regimes are never compared.
    """

    problem: Problem
    implementation: str
    implementation_version: str
    device: Device
    environment: Environment
    policy: str
    status: Status
    gate: GateResult
    measured_at: datetime
    reason: str = ""
    forward: Timing | None = None
    forward_backward: Timing | None = None
    graph_forward: Timing | None = None
    graph_forward_backward: Timing | None = None
    memory: Memory | None = None
    seed: int = 0
    gate_revision: int | None = None
    regime: str = LAUNCHED

    def __post_init__(self) -> None:
        if not isinstance(self.gate, GateResult):
            raise CorruptRecord(f"Record.gate={self.gate!r}: expected a GateResult; gate before you measure.")
        self._check_types()
        if self.measured_at.tzinfo is None:
            raise CorruptRecord(f"Record.measured_at={self.measured_at!r}: expected a time with a time zone.")
        if not EARLIEST <= self.measured_at <= LATEST:  # it could not be written in UTC
            raise CorruptRecord(f"Record.measured_at={self.measured_at}: expected years 1 to 9999 in UTC.")
        if self.status is Status.OK:
            for name, given in (
                ("a passed gate", self.gate.passed),
                ("times", self.total),
                ("memory", self.memory),
            ):
                if not given:
                    raise CorruptRecord(
                        f"Record of {self.implementation} with status ok, but without {name}."
                    )
        elif not self.reason:
            raise CorruptRecord(f"Record with status {self.status.value} and no reason.")

    def _check_types(self) -> None:
        values = vars(self)
        for name, kind in KINDS.items():
            if not isinstance(values[name], kind):
                check_type("Record", kind, **{name: values[name]})
        if type(self.seed) is not int:
            raise CorruptRecord(f"Record.seed={shorten(self.seed)}: expected a whole number.")
        revision = self.gate_revision
        if revision is not None and (type(revision) is not int or revision < 1):
            raise CorruptRecord(
                f"Record.gate_revision={shorten(revision)}: expected a whole number from 1, or none."
            )
        if self.regime not in REGIMES:
            raise CorruptRecord(f"Record.regime={shorten(self.regime)}: expected {', '.join(REGIMES)}.")

    @property
    def total(self) -> Timing | None:
        """The time that a choice is judged by: forward and backward in training, else forward."""
        return self.forward_backward if self.problem["mode"] == "training" else self.forward

    @property
    def peak_bytes(self) -> int | None:
        """The memory that a choice is judged by."""
        return None if self.memory is None else self.memory.peak_bytes

    @property
    def identity(self) -> tuple[str, ...]:
        """Problem, implementation and circumstances as text: of records with equal ones the newest counts."""
        return (
            self.problem.key,
            self.implementation,
            self.implementation_version,
            self.device.fingerprint,
            self.environment.fingerprint,
            self.policy,
            *(() if self.regime == LAUNCHED else (self.regime,)),  # as it was before there were others
        )

    def to_json(self) -> str:
        """One JSON line, complete; `from_json` reads it back."""
        data = asdict(self)
        data["problem"] = {"operator": self.problem.operator, **self.problem.as_dict}
        data["measured_at"] = self.measured_at.astimezone(UTC).isoformat()
        for name, usual in (("gate_revision", None), ("regime", LAUNCHED)):
            if data[name] == usual:  # which older readers do not know
                del data[name]
        return json.dumps({"schema": SCHEMA_VERSION, **data}, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Record:
        """The record of one JSON line. Raises CorruptRecord, naming what is wrong. See also RecordReader."""
        return RecordReader().read(line)


KINDS: Mapping[str, type | tuple[type, ...]] = {
    "problem": Problem,
    **dict.fromkeys(("implementation", "implementation_version", "policy", "reason"), str),
    "device": Device,
    "environment": Environment,
    "status": Status,
    "measured_at": datetime,
    "memory": (Memory, NoneType),
    **dict.fromkeys(TIMINGS, (Timing, NoneType)),
}


class RecordReader:
    """Reads lines of one source. Equal problems, devices and environments of its records are one object each.

    Most lines of a sweep name the same ones, and checking and fingerprinting them would be most of the work.
    """

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def read(self, line: str) -> Record:
        """The record of one JSON line, as `Record.from_json` reads it."""
        try:
            data = _DECODER.decode(line)
            if not isinstance(data, dict):
                raise CorruptRecord(f"not a measurement record (no JSON object): {shorten(line)}.")
            if "\\u" in line:
                json.dumps(data, ensure_ascii=False).encode()  # half of a character fails: no UTF-8 has it
            schema = data.pop("schema", None)
            if schema != SCHEMA_VERSION:
                raise CorruptRecord(f"record schema {schema!r}: this version reads schema {SCHEMA_VERSION}.")
            data["problem"] = self._shared(_problem_of, data["problem"])
            data["device"] = self._shared(Device.given, data["device"])
            data["environment"] = self._shared(Environment.from_dict, data["environment"])
            return Record(**_revive(data))
        except CorruptRecord:
            raise
        except KeyError as error:
            raise CorruptRecord(f"not a measurement record ({error} is missing): {shorten(line)}.") from error
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise CorruptRecord(f"not a measurement record ({error}): {shorten(line)}.") from error

    def _shared(self, make: Callable[[Any], Any], data: Any) -> Any:
        key = repr(data)  # tells 1, 1.0 and True apart, which are equal; fields tell the three kinds apart
        if key not in self._known:
            self._known[key] = make(data)
        return self._known[key]


def _refuse_constant(text: str) -> float:
    raise CorruptRecord(f"a record holds {text}: expected finite numbers.")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):  # readers differ in which of them counts
        raise CorruptRecord(f"a record gives a key twice among {shorten([name for name, _ in pairs])}.")
    return found


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_each_once)


def _problem_of(data: Mapping[str, Any]) -> Problem:
    values = tuple((name, value) for name, value in data.items() if name != "operator")
    problem = Problem(data["operator"], values)
    problem.check()
    return problem


def _revive(data: dict[str, Any]) -> dict[str, Any]:
    memory = data.get("memory")
    data["status"] = Status(data["status"])
    data["gate"] = GateResult(**data["gate"])
    data["measured_at"] = datetime.fromisoformat(data["measured_at"])
    data["memory"] = None if memory is None else Memory(**memory)
    for name in TIMINGS:
        timing = data.get(name)
        if timing is not None:
            timing["raw_ms"] = tuple(timing.get("raw_ms", ()))
            data[name] = Timing(**timing)
            if not all(map(math.isfinite, data[name].raw_ms)):
                raise CorruptRecord(f"{name}.raw_ms={shorten(data[name].raw_ms)}: expected finite numbers.")
    return data
