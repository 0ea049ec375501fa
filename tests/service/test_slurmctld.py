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
    name: shutil.which(name, path=PATH) for name in ("slurmctld", "scontrol", "sbatch", "sinfo", "curl")
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
SelectType=select/linear
{plugin}=lua
NodeName=n1 NodeAddr=127.0.0.1 Feature=h200,infiniband State=UNKNOWN
NodeName=n2 NodeAddr=127.0.0.1 Port=7 Feature=a100 State=UNKNOWN
NodeName=n3 NodeAddr=127.0.0.1 Port=8 Feature=v100 State=UNKNOWN
PartitionName=gpu Nodes=n[1-2] Default=YES State=UP
PartitionName=old Nodes=n3 State=UP
"""

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
        ("h200 a100", "h200|a100"),
        ("a100", "a100"),
        ("h200\na100\ninfiniband_not", None),
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
    site.kinds.write_text("h200 a100")
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
    assert sorted(lines) == ["gpu*: a100", "gpu*: h200 infiniband", "old: v100"]
