"""A Ray cluster of several nodes on this machine: it places workers, and loses one in the middle."""

from __future__ import annotations

import sys
import time

import pytest

from kernel_selector.db import Database
from kernel_selector.service.fleet.jobs import JobRequest, create_job, get_job
from kernel_selector.service.fleet.launch import Source, WorkerSetup
from kernel_selector.service.fleet.local import FleetFailed, FleetSpec, follow
from kernel_selector.service.fleet.ray import ray_fleet
from selector.workloads.sampling import grid

H200 = {"ray.io/accelerator-type": "H200"}
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of files and sockets that it leaves open
]


@pytest.fixture
def cluster(monkeypatch):
    """A head without GPUs, and two nodes with one pretended H200 each."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_agent_register_timeout_ms", "300000")  # of a node, on a busy machine
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.nodes = [made.add_node(num_cpus=1, num_gpus=1, labels=H200) for _ in range(2)]
    made.wait_for_nodes()
    yield made
    made.shutdown()


def new_job(path, hidden, device):
    problems = grid("lstm", {"hidden": hidden, "batch": "1", "seq": "2"})
    wanted = JobRequest(
        operator="lstm",
        problems=problems,
        devices=[device],
        implementations=["torch_lstm", "unfused"],
        policy="once",
        max_attempts=20,
    )
    return create_job(path, wanted, author="ann")[0]["id"]


@pytest.mark.full
def test_a_sweep_goes_on_when_a_node_is_killed(cluster, tmp_path):
    path = str(tmp_path / "jobs.sqlite")
    number = new_job(path, "4,5,6,7,8,9,10,11", "cpu")
    killed = []

    def kill_a_node(job):
        if job["tasks"]["done"] and not killed:
            killed.append(cluster.nodes[0])
            cluster.remove_node(cluster.nodes[0], allow_graceful=False)

    spec = FleetSpec(
        source=Source(database=path),
        setup=WorkerSetup(device="cpu", lease_s=5),
        devices=("nvidia-h200", "cpu"),
    )
    with ray_fleet(spec, cluster.address) as fleet:
        assert fleet.alive() >= 2
        found = follow(fleet, path, number, kill_a_node)
        with pytest.raises(FleetFailed, match=r"nodes have: .*H200"):
            ray_places(fleet)
    assert killed
    assert (found["state"], found["tasks"]["done"], found["records"]) == ("done", 8, 16)
    with Database.open(path):
        assert get_job(path, number) == found


def ray_places(fleet):
    """A job for a kind of device that no node of the cluster has."""
    nothing = FleetSpec(source=Source(database="x"), setup=WorkerSetup(), devices=("nvidia-l4",))
    type(fleet)(fleet._ray, nothing)


def test_an_address_without_a_cluster(tmp_path):
    spec = FleetSpec(
        source=Source(database=str(tmp_path / "jobs.sqlite")), setup=WorkerSetup(), devices=("cpu",)
    )
    started = time.monotonic()
    with (
        pytest.raises(FleetFailed, match=r"No Ray cluster answers at 127\.0\.0\.1:9"),
        ray_fleet(spec, "127.0.0.1:9"),
    ):
        pass
    assert time.monotonic() - started < 60


def test_without_ray(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    spec = FleetSpec(
        source=Source(database=str(tmp_path / "jobs.sqlite")), setup=WorkerSetup(), devices=("cpu",)
    )
    with pytest.raises(FleetFailed, match=r"pip install 'kernel-selector\[fleet\]'"), ray_fleet(spec, "auto"):
        pass
