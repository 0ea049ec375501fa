"""Slurm's own controller and `sbatch`, with our scripts: jobs are placed, and none that ran is refused."""

import getpass
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from threading import Thread

import pytest
import uvicorn

from benchmarks.common.serving import free_port
from kernel_selector.service.app import create_app
from selector import Selector

FOLDER = Path(__file__).parents[2] / "docs" / "schedulers"
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
PROGRAMS = {
    name: shutil.which(name, path=PATH)
    for name in ("slurmctld", "scontrol", "sbatch", "scancel", "sinfo", "curl")
}
MISSING = ", ".join(name for name, path in PROGRAMS.items() if path is None)
START_S = 60
QUESTION = '{"operator": "gru", "hyperparameters": {"hidden": 1024, "batch": 64}}'
CONFIGURATION = """
ClusterName=tested
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
GresTypes=gpu
{plugin}=lua
NodeName=DEFAULT CPUs=4 RealMemory=8000 Gres=gpu:2 State=UNKNOWN
NodeName=n1 NodeAddr=127.0.0.1 Feature=h200,infiniband
NodeName=n2 NodeAddr=127.0.0.1 Port=7 Feature=a100
NodeName=n3 NodeAddr=127.0.0.1 Port=8 Feature=v100
NodeName=n4 NodeAddr=127.0.0.1 Port=9 CPUs=16 Sockets=2 CoresPerSocket=8 RealMemory=64000 TmpDisk=9 Gres=gpu:8
PartitionName=gpu Nodes=n[1-2],n4 Default=YES State=UP
PartitionName=old Nodes=n3 State=UP
"""
KINDS = "gpu*: h200 a100"
SIZED = f"{KINDS} gpus=2 cpus=4 memory=8000"

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not on the PATH: {MISSING}")


@pytest.fixture(scope="module")
def service(gpu_database):
    """The address of a service that has measurements on an H200 and an A100."""
    selector, port = Selector(gpu_database), free_port()
    server = uvicorn.Server(uvicorn.Config(create_app(selector), port=port, log_level="warning"))
    thread = Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()
    selector.close()


class Site:
    """A controller and its clients. Each job is one that its nodes, which are all away, would run later."""

    def __init__(self, folder, plugin, service):
        self.folder = folder
        self.kinds = folder / "kinds"
        self.environment = {
            **os.environ,
            "PATH": PATH,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "KERNEL_SELECTOR_URL": service,
            "KERNEL_SELECTOR_KINDS_FILE": str(self.kinds),
        }
        (folder / "state").mkdir()
        settings = {"port": free_port(), "user": getpass.getuser(), "folder": folder, "plugin": plugin}
        (folder / "slurm.conf").write_text(CONFIGURATION.format(**settings))
        for script in FOLDER.glob("*.lua"):
            (folder / script.name).write_text(script.read_text().replace("/etc/slurm/", f"{folder}/"))
        command = ["slurmctld", "-D", "-f", str(folder / "slurm.conf")]
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    def run(self, *command):
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)

    def wait(self):
        ends = time.monotonic() + START_S
        while " is UP" not in self.run("scontrol", "ping").stdout:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < ends, self.log
            time.sleep(0.2)

    @property
    def log(self):
        return (self.folder / "log").read_text()

    def submit(self, *options):
        """The constraint of a new job, None without one, and what `sbatch` said."""
        said = self.run("sbatch", *options, "--wrap", "true")
        assert said.returncode == 0, said.stderr + self.log
        (number,) = re.findall(r"Submitted batch job (\d+)", said.stdout)
        shown = self.run("scontrol", "--oneliner", "show", "job", number).stdout
        (constraint,) = re.findall(r" Features=(\S+)", shown)
        return None if constraint == "(null)" else constraint, said.stderr


@pytest.fixture(scope="module", params=["CliFilterPlugins", "JobSubmitPlugins"])
def site(request, tmp_path_factory, service):
    made = Site(tmp_path_factory.mktemp("slurm"), request.param, service)
    try:
        made.wait()
        yield made
    finally:
        made.process.terminate()
        made.process.wait()


@pytest.mark.parametrize(
    ("kinds", "constraint"),
    [
        (KINDS, "h200|a100"),
        ("gpu*: a100", "a100"),
        ("gpu*: h200\ngpu*: a100\ngpu*: infiniband_not", None),
        ("", None),
        (None, None),
    ],
)
def test_a_job_goes_where_it_fits_or_is_left_as_it_is(site, kinds, constraint):
    site.kinds.unlink(missing_ok=True)
    if kinds is not None:
        site.kinds.write_text(kinds)
    found, said = site.submit("--comment", QUESTION)
    assert found == constraint
    if constraint is None:
        assert "kernel_selector: no constraint: " in said + site.log


def test_other_jobs_are_as_their_users_wrote_them(site):
    site.kinds.write_text(KINDS)
    assert site.submit("--comment", QUESTION, "--constraint", "infiniband")[0] == "infiniband"
    assert site.submit("--comment", "of mine")[0] is None
    assert site.submit()[0] is None


@pytest.mark.parametrize(
    ("partition", "constraint"), [(None, "h200|a100"), ("gpu", "h200|a100"), ("old", None)]
)
def test_a_job_stays_within_the_kinds_of_its_partition(site, partition, constraint):
    site.kinds.write_text("gpu*: h200 a100\nold:")
    options = [] if partition is None else ["--partition", partition]
    assert site.submit("--comment", QUESTION, *options)[0] == constraint


def words(value):
    """The name of a test with these options or kinds."""
    return value if isinstance(value, str) else " ".join(value)


def left_alone(site, *options):
    """The job of these options keeps no constraint but theirs, and somebody is told why."""
    before = site.log
    found, said = site.submit("--comment", QUESTION, *options)
    assert found is None
    assert "kernel_selector: no constraint: " in said + site.log.removeprefix(before)


@pytest.mark.parametrize("sizes", [KINDS, SIZED])
@pytest.mark.parametrize(
    "options",
    [
        ["--nodelist", "n4"],
        ["--nodes", "3"],
        ["--nodes", "3-8"],
        ["--exclude", "n1,n2"],
        ["--ntasks", "12"],
        ["--ntasks-per-node", "5"],
        ["--cpus-per-task", "5"],
        ["--mincpus", "5"],
        ["--mem", "9G"],
        ["--mem", "8001"],
        ["--mem-per-cpu", "9G"],
        ["--mem-per-gpu", "9G", "--gpus", "1"],
        ["--cpus-per-gpu", "5", "--gpus", "1"],
        ["--tmp", "9"],
        ["--extra-node-info", "2:2:1"],
        ["--cores-per-socket", "8"],
        ["--gres", "gpu:3"],
        ["--gpus", "9"],
        ["--gpus", "4", "--gpus-per-node", "4"],
        ["--gpus-per-node", "3"],
        ["--gpus-per-task", "3", "--ntasks", "1"],
    ],
    ids=words,
)
def test_a_job_that_our_kinds_may_not_hold_is_taken(site, sizes, options):
    """Slurm takes it as its user wrote it, and not with our constraint."""
    site.kinds.write_text(sizes)
    refused = site.run("sbatch", *options, "--constraint", "h200|a100", "--wrap", "true")
    assert "Batch job submission failed" in refused.stderr
    left_alone(site, *options)


@pytest.mark.parametrize(
    "options",
    [
        ["--prefer", "h200"],
        ["--exclusive"],
        ["--contiguous"],
        ["--switches", "1"],
        ["--threads-per-core", "1"],
        ["--gres-flags", "enforce-binding", "--gpus", "1"],
        ["--gpus", "1", "--gres", "gpu:1"],
        ["--ntasks-per-gpu", "1", "--gpus", "1"],
    ],
    ids=words,
)
def test_a_job_that_says_more_of_nodes_than_kinds_tell_is_left_alone(site, options):
    site.kinds.write_text(SIZED)
    left_alone(site, *options)


def test_a_job_in_a_reservation_is_left_alone(site):
    site.kinds.write_text(KINDS)
    fields = ["reservation=kept", "starttime=now", "duration=60", "nodes=n4", f"users={getpass.getuser()}"]
    made = site.run("scontrol", "create", *fields, "flags=ignore_jobs")
    assert made.returncode == 0, made.stderr
    try:
        left_alone(site, "--reservation", "kept")
    finally:
        site.run("scancel", "--reservation", "kept")
        site.run("scontrol", "delete", "reservationname=kept")


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        (KINDS, []),
        (KINDS, ["--nodes", "1", "--ntasks", "1", "--ntasks-per-node", "1", "--cpus-per-task", "1"]),
        (KINDS, ["--nodes", "1-3", "--mem", "0"]),
        (KINDS, ["--time", "10", "--job-name", 'a "b": c', "--output", ":x", "--array", "1-2"]),
        (SIZED, ["--cpus-per-task", "4", "--mem", "8000", "--gres", "gpu:2"]),
        (SIZED, ["--mem", "7G", "--gpus", "2"]),
        (SIZED, ["--gpus-per-node", "1"]),
        (SIZED, ["--gpus-per-task", "1", "--ntasks", "1"]),
        (SIZED, ["--gres", "gpu"]),
    ],
    ids=words,
)
def test_a_job_that_each_of_our_kinds_holds_goes_to_them(site, sizes, options):
    site.kinds.write_text(sizes)
    assert site.submit("--comment", QUESTION, *options)[0] == "h200|a100"


def test_an_option_in_the_script_counts(site):
    site.kinds.write_text(KINDS)
    script = site.folder / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --exclude n1,n2\ntrue\n")
    said = site.run("sbatch", "--comment", QUESTION, str(script))
    assert said.returncode == 0, said.stderr


def test_an_option_in_the_environment_counts(site, monkeypatch):
    site.kinds.write_text(KINDS)
    monkeypatch.setitem(site.environment, "SBATCH_MEM_PER_NODE", "9G")
    left_alone(site)


@pytest.mark.parametrize("kinds", ["h200 a100", "h200 a100 gpus=2", "gpu: h200\na100"])
@pytest.mark.parametrize("partition", ["old", "old,gpu", None])
def test_kinds_that_name_no_partition_are_nobodys(site, kinds, partition):
    """The partition of a job may have none of them, and Slurm would refuse it."""
    site.kinds.write_text(kinds)
    left_alone(site, *([] if partition is None else ["--partition", partition]))


@pytest.mark.parametrize(
    ("partition", "constraint", "words"),
    [
        ("gpu", "h100|h200", "Invalid feature specification"),
        ("old", "h200|a100", "Requested node configuration is not available"),
    ],
)
def test_slurm_refuses_what_no_node_has(site, partition, constraint, words):
    """Why nothing is named but kinds of the site, and of the partition."""
    refused = site.run("sbatch", "--partition", partition, "--constraint", constraint, "--wrap", "true")
    assert words in refused.stderr


def test_the_list_of_kinds_comes_out_of_slurm(site):
    (command,) = re.findall(r"^(sinfo .*?) > /etc", (FOLDER / "README.md").read_text(), re.MULTILINE)
    lines = site.run("sh", "-c", command).stdout.splitlines()
    assert sorted(lines) == [
        "gpu*: (null) # 16 CPUs 64000 MB gpu:8",
        "gpu*: a100 # 4 CPUs 8000 MB gpu:2",
        "gpu*: h200 infiniband # 4 CPUs 8000 MB gpu:2",
        "old: v100 # 4 CPUs 8000 MB gpu:2",
    ]
