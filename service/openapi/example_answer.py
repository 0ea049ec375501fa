"""The example of an answer in the OpenAPI document: a real one, to the question `limited`.

Floats are rounded to six digits, and only three of the candidates are kept.
"""

from __future__ import annotations

from typing import Any

ANSWER: dict[str, Any] = {
    "problem": {
        "operator": "lstm",
        "hidden": 256,
        "input": 256,
        "batch": 32,
        "seq": 50,
        "layers": 1,
        "bidirectional": False,
        "bias": True,
        "dtype": "float32",
        "mode": "training",
    },
    "assumed": ["input", "layers", "bidirectional", "bias"],
    "operator_assumed": False,
    "device": {
        "name": "AMD EPYC",
        "kind": "cpu",
        "vendor": "AMD",
        "host": "AMD EPYC x2",
        "compute_capability": None,
        "multiprocessors": 2,
        "memory_bytes": 25276514304,
        "l2_bytes": 33554432,
        "shared_bytes_per_multiprocessor": None,
        "copy_bytes_per_s": 11429300000.0,
        "matmul_flops_per_s": {"bfloat16": 525712000.0, "float16": 4324120000.0, "float32": 189732000000.0},
        "launch_us": 2.47871,
        "barrier_us": None,
    },
    "torch_device": "cpu",
    "implementation": "torch_lstm",
    "source": "exact",
    "objective": "time",
    "time_ms": 30.6737,
    "time_interval_ms": [29.1769, 31.1739],
    "memory_bytes": 42410552,
    "memory_interval_bytes": [42410552, 42410552],
    "memory_limit_bytes": 1073741824,
    "runner_up": "hoisted",
    "margin": 0.415006,
    "candidates": [
        {
            "name": "torch_lstm",
            "default": True,
            "source": "exact",
            "time_ms": 30.6737,
            "time_interval_ms": [29.1769, 31.1739],
            "memory_bytes": 42410552,
            "memory_interval_bytes": [42410552, 42410552],
            "excluded": None,
            "note": "",
        },
        {
            "name": "hoisted",
            "default": False,
            "source": "exact",
            "time_ms": 43.4035,
            "time_interval_ms": [42.4789, 45.8093],
            "memory_bytes": 21925888,
            "memory_interval_bytes": [21925888, 21925888],
            "excluded": None,
            "note": "",
        },
    ],
    "basis": {
        "source": "exact",
        "own_measurements": 2,
        "shipped_measurements": 0,
        "learned": False,
        "most_similar": {
            "device": "AMD EPYC",
            "values": {},
            "doublings": 0.0,
            "times_ms": {"torch_lstm": 30.6737, "hoisted": 43.4035},
            "shipped": False,
        },
    },
    "caveats": [],
    "snapshot": "712f210f1b6b",
    "model_version": None,
}
