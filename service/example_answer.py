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
        "multiprocessors": 1,
        "memory_bytes": 25276514304,
        "l2_bytes": 33554432,
        "shared_bytes_per_multiprocessor": None,
        "copy_bytes_per_s": 21377400000.0,
        "matmul_flops_per_s": {
            "float32": 102455000000.0,
            "bfloat16": 223335000000.0,
            "float16": 4254370000.0,
        },
        "launch_us": 2.25554,
        "barrier_us": None,
    },
    "torch_device": "cpu",
    "implementation": "hoisted",
    "source": "exact",
    "objective": "time",
    "time_ms": 561.187,
    "time_interval_ms": [533.338, 668.654],
    "memory_bytes": 21925888,
    "memory_interval_bytes": [21925888, 21925888],
    "memory_limit_bytes": 1073741824,
    "runner_up": "hoisted_batch_minor",
    "margin": 0.0499846,
    "candidates": [
        {
            "name": "hoisted",
            "default": False,
            "source": "exact",
            "time_ms": 561.187,
            "time_interval_ms": [533.338, 668.654],
            "memory_bytes": 21925888,
            "memory_interval_bytes": [21925888, 21925888],
            "excluded": None,
            "note": "",
        },
        {
            "name": "hoisted_batch_minor",
            "default": False,
            "source": "exact",
            "time_ms": 589.238,
            "time_interval_ms": [528.431, 1919.97],
            "memory_bytes": 28479488,
            "memory_interval_bytes": [28479488, 28479488],
            "excluded": None,
            "note": "",
        },
        {
            "name": "torch_lstm",
            "default": True,
            "source": "exact",
            "time_ms": 868.534,
            "time_interval_ms": [553.056, 977.523],
            "memory_bytes": 42410552,
            "memory_interval_bytes": [42410552, 42410552],
            "excluded": None,
            "note": "",
        },
    ],
    "caveats": ["Measured on host AMD EPYC x2 instead of AMD EPYC x2, threads 2 instead of 1."],
    "snapshot": "4a7c6ed0e902",
    "model_version": None,
}
