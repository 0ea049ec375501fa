"""Ctrl-C in a real process: what is measured is kept, and the next run goes on from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from kernel_selector.db import Database, DatabaseError, records
from kernel_selector.kernels import registry

ROOT = Path(__file__).parents[2]
PROBLEMS = ["lstm", "hidden=4,6,8,10,12,14,16,18", "batch=1,2,3,4", "seq=8", "--device", "cpu"]


def start(database: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kernel_selector.service.cli", "profile", *PROBLEMS, *options]
    return subprocess.Popen(
        [*command, "--database", str(database)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a process group of its own, as a terminal gives to a command
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's & ignores it
    )


def stored(database: Path) -> int:
    try:
        with Database.open(database) as opened, opened.read() as connection:
            return records.total(connection)
    except DatabaseError:
        return 0


def test_ctrl_c_keeps_every_record_and_the_next_run_resumes(tmp_path: Path) -> None:
    path = tmp_path / "measurements.sqlite"
    process = start(path)
    deadline = time.monotonic() + 600
    while not stored(path) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the children, too
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert out == ""
    assert "Every finished record is stored" in err
    assert "Traceback" not in err
    kept, of_a_problem = stored(path), len(registry.implementations("lstm"))
    assert 0 < kept < 32 * of_a_problem

    again = start(path, "--budget", "1s", "--json")
    out, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    finished = json.loads(out)
    assert finished["skipped"] >= kept // of_a_problem
    assert finished["measured"] >= 1
    assert stored(path) > kept
