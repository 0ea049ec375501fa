"""Speed-up of profiling by more GPUs of a machine.

    python -m benchmarks.service.fleet [--operator NAME] [--count N]

Runs `selector fleet profile` over the same random problems with one worker, with one for each GPU, and with
as many on a Ray cluster that is started for it (--ray; needs the extra `fleet`). Each run has a new database
and empty caches of compiled kernels, so that none finds what an earlier one compiled. Every problem must be
measured exactly once. The speed-up is of the whole command, its start and its compilations included, and of
the tasks a second after the first one has ended. Writes `benchmarks/results/fleet_<device>.json` after each
run. `--device cpu` tries it without a GPU, with one
worker alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.result import RESULTS, write_result
from kernel_selector.db import Database, records
from kernel_selector.kernels.measure import identify
from kernel_selector.service.jobs import list_jobs

CACHES = ("KERNEL_SELECTOR_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
LOOK_S = 0.5  # between looks at the job
RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


def main() -> None:
    """Run the fleets, one after another, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operator", default="lstm", help="default lstm")
    parser.add_argument("--count", type=int, default=16, help="random problems; default 16")
    parser.add_argument("--policy", default="quick", help="how carefully to measure; default quick")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--ray", action="store_true", help="one more run, on a Ray cluster")
    parser.add_argument("--commit", help="of a copy of the checkout without its repository")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to write to")
    given = parser.parse_args()
    device = "cpu" if given.device == "cpu" else "cuda:0"
    words = ["fleet", "profile", given.operator, "--count", str(given.count), "--policy", given.policy]
    words += ["--device", given.device]
    fleets: dict[str, list[str]] = {"all_gpus": [], "one_worker": ["--workers", "1"]}
    if given.ray:
        fleets = {"ray": ["--address", "local"], **fleets}
    runs: dict[str, Any] = {}
    for name, more in fleets.items():
        runs[name] = run([*words, *more])
        print(name, {key: value for key, value in runs[name].items() if key != "output"}, flush=True)
        found = {"command": ["selector", *words], "runs": runs, "speed_up": speed_up(runs)}
        file = f"fleet_{identify(device).key}"
        path = write_result(file, found, torch_device=device, commit=given.commit, folder=given.results)
    print(speed_up(runs), path)


def run(words: Sequence[str]) -> dict[str, Any]:
    """One fleet in a folder of its own: its seconds, and what it measured."""
    with tempfile.TemporaryDirectory() as folder:
        database = str(Path(folder) / "measurements.sqlite")
        Database.open(database, create=True).close()
        caches = {name: str(Path(folder) / name) for name in CACHES}
        command = [sys.executable, "-m", "kernel_selector.service.cli", *words, "--database", database]
        started = time.monotonic()
        said_to = Path(folder) / "output"
        with said_to.open("wb") as output:
            process = subprocess.Popen(
                command, env={**os.environ, **RAY, **caches}, stdout=output, stderr=subprocess.STDOUT
            )
            ended_s = watch(process, database, started)
        seconds = time.monotonic() - started
        said = said_to.read_text(errors="replace").splitlines()
        if process.returncode:
            return {"exit_status": process.returncode, "seconds": round(seconds, 1), "output": said[-20:]}
        (job,) = list_jobs(database).items
        with Database.open(database) as store, store.read() as connection:
            measured = list(records.find(connection))
    by_problem = Counter((record.problem.key, record.implementation) for record in measured)
    return {
        "exit_status": 0,
        "seconds": round(seconds, 1),
        "tasks_ended_s": ended_s,
        "tasks": job["tasks"],
        "records": len(measured),
        "measured_more_than_once": sum(count > 1 for count in by_problem.values()),
        "statuses": dict(Counter(record.status.value for record in measured)),
        "output": said[-20:],
    }


def watch(process: subprocess.Popen[bytes], database: str, started: float) -> list[float]:
    """Wait for the command; the seconds after which each of its tasks was seen to have ended."""
    ended: list[float] = []
    while process.poll() is None:
        time.sleep(LOOK_S)
        jobs = list_jobs(database).items
        done = jobs[0]["tasks"]["done"] if jobs else 0
        ended += [round(time.monotonic() - started, 1)] * (done - len(ended))
    return ended


def speed_up(runs: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Speed-up of each fleet over one worker, if both ended well: of the command, and once tasks end.

    The second leaves out what any fleet takes to start: its tasks a second after the first has ended.
    """
    ended = {name: one for name, one in runs.items() if one["exit_status"] == 0}
    if "one_worker" not in ended:
        return {}
    one = ended["one_worker"]
    return {
        name: {
            "command": round(one["seconds"] / fleet["seconds"], 2),
            "after_start": round(_rate(fleet) / _rate(one), 2),
        }
        for name, fleet in ended.items()
    }


def _rate(fleet: dict[str, Any]) -> float:
    ended = fleet["tasks_ended_s"]
    return float((len(ended) - 1) / max(ended[-1] - ended[0], LOOK_S)) if ended else 1.0


if __name__ == "__main__":
    main()
