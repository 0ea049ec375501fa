"""Where every benchmark writes: figures together with what they were measured on."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernel_selector.kernels import measure

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).resolve().parent / "results"


def write_result(name: str, payload: Mapping[str, Any]) -> Path:
    """Write `results/<name>.json`: the payload, the environment, the commit and the time. Returns it.

    `device` is this machine's default one, without its rates: a benchmark that needs them measures them
    itself. `load_1min` tells how busy the machine was.
    """
    torch_device = measure.default_torch_device()
    result = {
        "name": name,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "device": device_name(torch_device),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "environment": asdict(measure.current_environment()),
        **payload,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
    return path


def device_name(torch_device: str) -> str:
    """The GPU's name, or the processor's."""
    if torch_device == "cpu":
        return measure.probe("cpu").name
    import torch

    return torch.cuda.get_device_name(torch_device)


def commit() -> str:
    """The commit, with `+` when files were changed since; "unknown" outside a repository."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
