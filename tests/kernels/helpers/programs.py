"""Programs of this folder, run in a process of their own: Triton's interpreter is chosen at import."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
LOADED = {"interpreted_whole.py"}  # of which a second of each run went into imports


@cache
def forks(*loaded: str, interpreted: bool = False) -> subprocess.Popen[str]:
    """The process that runs them, or that which runs the one that it has loaded."""
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parents[2]), "OMP_NUM_THREADS": "1"}
    if interpreted:
        environment |= {"TRITON_INTERPRET": "1", "TRITON_DEFAULT_FP_FUSION": "1"}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(FOLDER / "forks.py"), *loaded],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    atexit.register(process.communicate)  # closes its input, which ends it
    return process


def run(program: str, *arguments: str, given: Iterable[Any] | None = None, timeout: float = 850) -> list[Any]:
    """The lines of JSON that a program prints, for `given` JSON; whatever fails raises."""
    pytest.importorskip("triton", reason="Triton is not installed")
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder, name)) for name in ("input", "output", "errors")}
        Path(files["input"]).write_text(json.dumps(given if given is None else list(given)))
        command = {"arguments": [str(FOLDER / program), *arguments], "environment": dict(os.environ)}
        if program in LOADED:
            process = forks(str(FOLDER / program))
        else:
            process = forks(interpreted=program.startswith("interpreted"))
        print(json.dumps(command | files), file=process.stdin, flush=True)
        if not select.select([process.stdout], [], [], timeout)[0]:
            os.killpg(process.pid, signal.SIGKILL)
            forks.cache_clear()
            pytest.fail(f"{program} did not end in {timeout} s")
        status = process.stdout.readline().strip()
        assert status == "0", f"exit status {status}: {Path(files['errors']).read_text()[-4000:]}"
        return [json.loads(line) for line in Path(files["output"]).read_text().splitlines()]
