"""Rejections by the present gate that ship, beside measurements of earlier gates.

A measurement that an earlier gate passed counts, unless the present one rejects that implementation for such
a problem. These verdicts are records without times, a line each:
`python -m benchmarks.kernels.gate_verdicts` makes them. What is wrong on one device is taken to be wrong on
all that run the same code: of one compute capability, or on every processor.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kernel_selector.kernels.contract import Device, Record

FILE = Path(__file__).with_name("rejected.jsonl")


def rejected(operator: str, device: Device) -> list[Record]:
    """The verdicts on an operator's implementations that concern a device."""
    return [
        record
        for record in _verdicts()
        if record.problem.operator == operator and _runs_the_same_code(record.device, device)
    ]


def _runs_the_same_code(one: Device, other: Device) -> bool:
    return (one.kind, one.compute_capability) == (other.kind, other.compute_capability)


@cache
def _verdicts() -> tuple[Record, ...]:
    return tuple(Record.from_json(line) for line in FILE.read_text(encoding="utf-8").splitlines())
