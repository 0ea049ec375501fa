"""A sweep on a Ray cluster that loses a node: python -m benchmarks.service.ray_faults [--nodes N].

Starts a head and nodes on this machine, runs `selector fleet profile ... --address` against them, over a
PostgreSQL server of its own, and kills one node's processes once a task is done. The job has to end with
every task done and every problem measured once. Writes `benchmarks/results/ray_faults.json`, with what the
command printed. Needs the extra `fleet`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.common.postgres import running
from benchmarks.common.result import write_result
from kernel_selector.db import Database, records
from kernel_selector.service.jobs import list_jobs

SIZES = {"hidden": "4,5,6,7,8,9,10,11,12,13,14,15", "batch": "1", "seq": "2"}
LIMIT_S = 400.0
CLUSTER = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_agent_register_timeout_ms": "300000",  # of a node, on a busy machine
}


def main() -> None:
    """Run it and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=3)
    given = parser.parse_args()
    os.environ.update(CLUSTER)
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(given.nodes)]
        cluster.wait_for_nodes()
        with running() as server:
            Database.open(server.url, create=True).close()
            result = sweep(server.url, cluster.address, lambda: cluster.remove_node(nodes[0], False))
    finally:
        cluster.shutdown()
    print(json.dumps(result, indent=2))
    print(write_result("ray_faults", {"nodes": given.nodes, **result}, torch_device="cpu"))


def sweep(url: str, address: str, kill: Any) -> dict[str, Any]:
    """The command, a kill in the middle of its job, and what became of the job."""
    words = ["fleet", "profile", "lstm", *(f"{name}={values}" for name, values in SIZES.items())]
    words += ["--device", "cpu", "--policy", "once", "--lease", "10s", "--address", address]
    command = [sys.executable, "-m", "kernel_selector.service.cli", *words, "--database", url]
    started = time.monotonic()
    killed_s: float | None = None
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "output"
        with said.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            while process.poll() is None:
                if time.monotonic() - started > LIMIT_S:
                    process.kill()
                    raise SystemExit(f"not done within {LIMIT_S} s:\n{said.read_text()[-2000:]}")
                jobs = list_jobs(url).items
                if killed_s is None and jobs and jobs[0]["tasks"]["done"]:
                    kill()
                    killed_s = time.monotonic() - started
                time.sleep(0.5)
        lines = said.read_text(errors="replace").splitlines()
    (job,) = list_jobs(url).items
    with Database.open(url) as store, store.read() as connection:
        measured = Counter((record.problem.key, record.implementation) for record in records.find(connection))
    return {
        "exit_status": process.returncode,
        "seconds": round(time.monotonic() - started, 1),
        "node_killed_after_s": None if killed_s is None else round(killed_s, 1),
        "tasks": job["tasks"],
        "records": sum(measured.values()),
        "measured_more_than_once": sum(count > 1 for count in measured.values()),
        "output": [line for line in lines if line.startswith(("job", "Job"))],
    }


if __name__ == "__main__":
    main()
