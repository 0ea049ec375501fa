"""The examples of profiling jobs in the OpenAPI document. A test sends each of them to a running service."""

from __future__ import annotations

import json
from typing import Any

from .example_record import LINE

RECORD = json.loads(LINE)
LOST = {"task": 1, "lease": "0" * 32}

JOBS: dict[str, dict[str, Any]] = {
    "two_kinds": {
        "summary": "Two problems on two kinds of GPU: four tasks",
        "value": {
            "operator": "lstm",
            "problems": [
                {"hyperparameters": {"hidden": 1024, "batch": 64}},
                {"hyperparameters": {"hidden": 2048, "batch": 16, "dtype": "bfloat16"}},
            ],
            "devices": ["h200", "nvidia-a100-sxm4-80gb"],
        },
    },
}

CLAIMS: dict[str, dict[str, Any]] = {
    "worker": {
        "summary": "A worker with a GPU",
        "value": {
            "worker": "gpu-node-7:cuda:0",
            "device": RECORD["device"],
            "environment": RECORD["environment"],
            "lease_s": 60,
        },
    },
}

# nobody has such a lease: the answer is that the task is lost
HEARTBEATS: dict[str, dict[str, Any]] = {
    "lost": {"summary": "Of a task that another worker has", "value": LOST, "x-status": 409},
}
ENDINGS: dict[str, dict[str, Any]] = {
    "lost": {
        "summary": "Of a task that another worker has: nothing is stored",
        "value": {**LOST, "outcome": "done", "records": [RECORD]},
        "x-status": 409,
    },
}
