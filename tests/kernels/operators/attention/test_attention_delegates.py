"""Whose code torch's attention runs, by its rules and by what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernel_selector.db import Database, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Record
from kernel_selector.kernels.devices import known_devices
from kernel_selector.kernels.operators.attention._delegates import torch_sdpa
from selector.selection.shipped import unpacked

OPERATOR = registry.operator("attention")
H200 = known_devices()["nvidia-h200"]
LEAST_MS = 1.0  # of the device: far above what a host takes to begin


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"dtype": "bfloat16"}, "sdpa_cudnn"),
        ({"dtype": "bfloat16", "mask": "padding"}, "sdpa_cudnn"),
        ({"dtype": "float16", "kv_heads": 2}, "sdpa_cudnn"),
        ({"dtype": "float16", "head_dim": 256}, "sdpa_flash"),
        ({"dtype": "float16", "head_dim": 256, "mask": "boolean"}, "sdpa_efficient"),
        ({"dtype": "bfloat16", "bias": True}, "sdpa_efficient"),
        ({"dtype": "float32"}, "sdpa_efficient"),
        ({"dtype": "float32", "kv_heads": 2}, "sdpa_math"),
        ({"dtype": "float32", "return_weights": True}, "written_out"),
    ],
)
def test_the_backend_of_a_problem(given: dict[str, object], expected: str) -> None:
    problem = OPERATOR.problem({"batch": 2, "heads": 8, "seq": 64, "head_dim": 64} | given)
    assert torch_sdpa(problem, H200) == expected
    assert registry.implementation("attention", expected).unsupported(problem, H200) is None


def test_before_hopper_cudnn_is_not_asked_first() -> None:
    problem = OPERATOR.problem(batch=2, heads=8, seq=64, head_dim=64, dtype="bfloat16")
    assert torch_sdpa(problem, replace(H200, compute_capability=(8, 0))) == "sdpa_flash"


def test_on_a_processor_it_is_code_of_its_own() -> None:
    problem = OPERATOR.problem(batch=2, heads=8, seq=64, head_dim=64)
    assert torch_sdpa(problem, replace(H200, kind="cpu", compute_capability=None)) == "torch_sdpa"


def test_its_measured_times_are_those_of_the_backend_that_is_named() -> None:
    with Database.open(unpacked()) as database, database.read() as connection:
        found = [one for one in records.find(connection, operator="attention") if one.device.kind == "cuda"]
    times = {(*_where(one), one.implementation): one.total.undisturbed_ms for one in found if one.total}
    pairs = [
        (times[*_where(one), "torch_sdpa"], times.get((*_where(one), torch_sdpa(one.problem, one.device)), 0))
        for one in found
        if one.implementation == "torch_sdpa" and one.total
    ]
    ratios = [its_own / named for its_own, named in pairs if min(its_own, named) > LEAST_MS]
    assert len(ratios) > 100
    assert np.mean(np.abs(np.log(ratios)) < np.log(1.1)) > 0.95


def _where(record: Record) -> tuple[str, str, str]:
    return record.problem.key, record.device.fingerprint, record.policy
