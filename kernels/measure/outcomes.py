"""Outcomes of candidates, as the child process reports them: status, reason, the gate's result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..contract import GateResult, Status, UnsupportedProblem
from ..contract.errors import first_words
from ..runtime.out_of_memory import is_out_of_memory

Judged = Mapping[str, Any]  # the outcome of a candidate that passed: the fields of its gate and memory


def failure(error: BaseException, stage: str, gate: GateResult | None = None) -> dict[str, Any]:
    """The outcome of a candidate that raised."""
    text = f"{type(error).__name__}: {first_words(error)}".removesuffix(": ")
    return outcome(status_of(error), f"{text} (while {_doing(stage)})", gate)


def _doing(stage: str) -> str:
    return stage if stage.split()[0].endswith("ing") else f"in {stage}"


def outcome(status: Status, reason: str, gate: GateResult | None) -> dict[str, Any]:
    """The outcome of a candidate, without times and bytes; the reason stands for a gate not reached."""
    result = gate or GateResult.not_reached(reason)
    return {"status": status.value, "reason": reason, "gate": asdict(result)}


def status_of(error: BaseException) -> Status:
    """The status of a measurement that an error ended."""
    if isinstance(error, UnsupportedProblem):
        return Status.UNSUPPORTED
    return Status.OUT_OF_MEMORY if is_out_of_memory(error) else Status.CRASHED
