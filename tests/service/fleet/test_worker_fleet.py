"""Fleets: one worker for each place, and what is said when there is none."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernel_selector.service.fleet.jobs import JobRequest, create_job, get_job
from kernel_selector.service.fleet.launch import Source, WorkerSetup
from kernel_selector.service.fleet.local import FleetFailed, FleetSpec, LocalFleet, follow, shared, stopped
from kernel_selector.service.fleet.ray import RayFleet, placements
from kernel_selector.service.fleet.slurm import SlurmFleet, SlurmSite, _parameters
from selector import InvalidRequest
from selector.selection import devices
from selector.workloads.sampling import grid

H200 = {"ray.io/accelerator-type": "H200"}


def node(labels=None, alive=True, **resources):
    return {"Alive": alive, "Labels": labels or {}, "Resources": {"CPU": 16.0, **resources}}


NODES = [
    node(H200, GPU=2.0),
    node({"ray.io/accelerator-type": "A100"}, GPU=1.0),
    node(H200, alive=False, GPU=8.0),
    node(),
]


def new_job(path, **given):
    wanted = {"operator": "lstm", "problems": grid("lstm", {"hidden": "4", "batch": "1", "seq": "2,3"})}
    wanted |= {"devices": ["cpu"], "implementations": ["torch_lstm"], "policy": "once"}
    return create_job(path, JobRequest(**wanted | given), author="ann")[0]["id"]


def spec(source, *kinds, **given):
    return FleetSpec(source=source, setup=WorkerSetup(lease_s=5, **given), devices=kinds or ("cpu",))


def test_a_place_for_each_gpu_of_a_wanted_kind():
    bound = {"num_gpus": 1, "num_cpus": 1, "label_selector": H200}
    free = {"num_gpus": 1, "num_cpus": 1}
    assert placements(NODES, ("nvidia-h200",)) == [bound] * 2
    assert placements(NODES, ("cuda",)) == [free] * 3
    assert placements(NODES, ("nvidia-h200", "cuda")) == [bound, bound, free]
    assert placements(NODES, ("cpu",)) == [{"num_cpus": 16.0}] * 3
    assert placements(NODES, ("nvidia-l4",)) == []


def test_what_slurm_is_asked_for():
    source = Source(database="postgresql://nobody@localhost/none")
    slurm_site = SlurmSite(folder=Path("logs"), partition="gpu", hours=1.5)
    asked = _parameters(spec(source, "nvidia-h200", "nvidia-l4"), slurm_site)
    assert asked == {
        "name": "selector-worker",
        "timeout_min": 90,
        "gpus_per_node": 1,
        "slurm_constraint": "h200|l4",
        "slurm_partition": "gpu",
    }
    assert "slurm_constraint" not in _parameters(spec(source, "nvidia-h200", "cuda"), slurm_site)
    assert "gpus_per_node" not in _parameters(spec(source, "cpu"), slurm_site)


def test_a_file_cannot_be_reached_from_elsewhere(tmp_path):
    path = str(tmp_path / "jobs.sqlite")
    assert shared(path, elsewhere=False).database
    with pytest.raises(FleetFailed, match=r"is a file of this machine.*postgresql://"):
        shared(path, elsewhere=True)


def test_a_source_is_one_of_two():
    with pytest.raises(InvalidRequest, match="expected one of them"):
        Source(service="http://127.0.0.1:1", database="a.sqlite")
    for lease_s in (0.0, 1e9, float("nan")):
        with pytest.raises(InvalidRequest, match="lease_s"):
            WorkerSetup(lease_s=lease_s)


def test_this_machine_without_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "local_names", lambda: ("cpu",))
    with pytest.raises(FleetFailed, match="this machine has no GPU"):
        LocalFleet(spec(Source(database=str(tmp_path / "jobs.sqlite")), "nvidia-h200"))


def test_a_slurm_site_is_needed_for_slurm(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    source = Source(database="postgresql://nobody@localhost/none")
    with pytest.raises(FleetFailed, match="run this where `srun` is"):
        SlurmFleet(spec(source), SlurmSite(folder=tmp_path))


class PretendedRay:
    """A cluster of NODES that notes what it is asked for; `ended` are the workers that have."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self):
        self.started, self.cancelled, self.ended, self.error = [], [], set(), None

    def nodes(self):
        return NODES

    def remote(self, *, max_retries):
        assert max_retries == -1  # the database gives up what kills its workers
        return lambda _: self

    def options(self, **options):
        def start(_, setup):
            self.started.append((options, setup))
            return len(self.started)

        return SimpleNamespace(remote=start)

    def wait(self, references, *, num_returns, timeout):
        assert num_returns == len(references)
        assert timeout >= 0
        return [one for one in references if one in self.ended], [
            one for one in references if one not in self.ended
        ]

    def get(self, references):
        if references and self.error:
            raise self.error

    def cancel(self, reference):
        self.cancelled.append(reference)


def test_the_workers_of_a_ray_cluster():
    ray, source = PretendedRay(), Source(database="postgresql://nobody@localhost/none")
    fleet = RayFleet(ray, spec(source, "nvidia-h200", "cpu"))
    assert [setup.device for _, setup in ray.started] == ["cuda:0", "cuda:0", "cpu", "cpu", "cpu"]
    assert all(setup.until_empty for _, setup in ray.started)
    assert fleet.alive() == 5
    ray.ended = {1, 3, 4, 5}
    assert fleet.alive() == 1
    fleet.stop()
    assert ray.cancelled == [2]
    ray.ended, ray.error = {2}, RuntimeError("out of disk")
    with pytest.raises(FleetFailed, match="out of disk"):
        fleet.alive()
    assert fleet.alive() == 0


def test_a_ray_cluster_without_a_place():
    source = Source(database="postgresql://nobody@localhost/none")
    with pytest.raises(
        FleetFailed, match=r"needs nvidia-l4, and the cluster's nodes have: A100, H200, no GPU"
    ):
        RayFleet(PretendedRay(), spec(source, "nvidia-l4"))


class Absent:
    """A fleet whose workers have all ended."""

    def alive(self):
        return 0

    def stop(self):
        pass


def test_a_fleet_that_has_ended_before_its_job(tmp_path):
    path = str(tmp_path / "jobs.sqlite")
    number = new_job(path)
    with pytest.raises(FleetFailed, match=r"job 1 has not.*cpu"):
        follow(Absent(), path, number, lambda _: None)


@pytest.mark.timeout(600)
def test_this_machine_measures_and_starts_again_what_is_killed(tmp_path):
    """Real measurements of small layers, while a worker is killed."""
    path = str(tmp_path / "jobs.sqlite")
    number = new_job(path)
    killed = []

    def kill_once(_):
        if not killed:
            killed.extend(fleet.pids())
            os.kill(killed[0], signal.SIGKILL)

    with stopped(LocalFleet(spec(Source(database=path), device="cpu"))) as fleet:
        found = follow(fleet, path, number, kill_once)
    assert (found["state"], found["tasks"]["done"], found["records"]) == ("done", 2, 2)
    assert fleet.pids() != killed
    assert get_job(path, number) == found


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:.*Popen.__del__")  # submitit waits for no process that it has started
def test_submitit_runs_workers(tmp_path):
    path = str(tmp_path / "jobs.sqlite")
    number = new_job(path)
    slurm_site = SlurmSite(folder=tmp_path / "logs", cluster="local")
    with stopped(SlurmFleet(spec(Source(database=path), device="cpu"), slurm_site)) as fleet:
        found = follow(fleet, path, number, lambda _: None)
        while fleet.alive():
            time.sleep(0.1)
    assert (found["state"], found["records"]) == ("done", 2)
