"""Programs of this folder, run in an interpreter of their own: Triton's interpreter is chosen at import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent


def run(
    program: str, *arguments: str, given: Iterable[Any] | None = None, timeout: float = 280, **more: str
) -> list[Any]:
    """The lines of JSON that a program prints, `given` JSON and `more` environment; whatever fails raises."""
    pytest.importorskip("triton", reason="Triton is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / program), *arguments],
        input=json.dumps(given if given is None else list(given)),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(FOLDER.parents[1]), "OMP_NUM_THREADS": "1", **more},
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
