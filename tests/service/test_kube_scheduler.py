"""Kubernetes' own scheduler with our configuration and extender: pods go where they run, none in vain.

No package brings its programs: KUBE_SCHEDULER, KUBE_APISERVER and ETCD name them where a site has them.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from benchmarks.common.serving import free_port
from kernel_selector.db import Database
from kernel_selector.service.scheduling.extender_arguments import ANNOTATION

CONFIGURATION = Path(__file__).parents[2] / "docs" / "schedulers" / "kube-scheduler.yaml"
NAMED = {name: os.environ.get(name, "") for name in ("KUBE_SCHEDULER", "KUBE_APISERVER", "ETCD")}
UNNAMED = ", ".join(name for name, path in NAMED.items() if not path)
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
START_S = 60.0
TOKEN = "of-this-test"
SLOW, FAST = "Tesla-T4", "NVIDIA-H200"
LAYER = {"operator": "lstm", "hyperparameters": {"hidden": 1024, "batch": 64, "seq": 50}}
OF_20_GB = {"operator": "lstm", "hyperparameters": {"hidden": 4096, "batch": 1024, "seq": 256, "layers": 2}}
OF_NO_DEVICE = {"operator": "lstm", "hyperparameters": {"hidden": 60_000, "batch": 60_000}}

pytestmark = pytest.mark.skipif(bool(UNNAMED), reason=f"KUBE_SCHEDULER and its like are not named: {UNNAMED}")


class Cluster:
    """An API server, whose nodes are all away: pods are bound to them, and none of them starts."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE

    def ask(self, path: str, body: dict[str, Any] | None = None, method: str = "GET") -> dict[str, Any]:
        """The answer to a request; its errors are raised."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        request = Request(self.url + path, data, headers, method="POST" if data else method)
        with urlopen(request, timeout=10, context=self._context) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def add_node(self, name: str, product: str) -> None:
        """Add a node with one GPU, as its kubelet and the GPU operator describe it."""
        sizes = {"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "1"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
        metadata = {"name": name, "labels": {"nvidia.com/gpu.product": product}}
        status = {"capacity": sizes, "allocatable": sizes, "conditions": [ready]}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}
        self.ask("/api/v1/nodes", node)

    def add_pod(self, name: str, layer: dict[str, Any] | None, importance: str = "low", **spec: Any) -> None:
        """Add a pod that asks for a GPU, and says what it computes."""
        annotations = {} if layer is None else {ANNOTATION: json.dumps(layer)}
        container = {"name": "train", "image": "train", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        whole = {
            "containers": [container],
            "priorityClassName": importance,
            "terminationGracePeriodSeconds": 0,
        }
        metadata = {"name": name, "annotations": annotations}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**whole, **spec}}
        self.ask("/api/v1/namespaces/default/pods", pod)

    def bound(self) -> dict[str, str | None]:
        """The node to which each pod is bound, by the pod's name."""
        items = self.ask("/api/v1/namespaces/default/pods")["items"]
        return {one["metadata"]["name"]: one["spec"].get("nodeName") for one in items}

    def refusals(self, name: str) -> list[str]:
        """Reasons why a pod has no node, as its user sees them."""
        events = self.ask("/api/v1/namespaces/default/events")["items"]
        found = (one for one in events if (one.get("involvedObject") or one["regarding"])["name"] == name)
        return [one.get("message") or one["note"] for one in found if one["reason"] == "FailedScheduling"]

    def clear(self) -> None:
        """Take away all pods and nodes."""
        self.ask("/api/v1/namespaces/default/pods?gracePeriodSeconds=0", method="DELETE")
        self.ask("/api/v1/nodes", method="DELETE")


def until(true: Callable[[], Any], running: tuple[subprocess.Popen[bytes], ...], logs: Path) -> Any:
    """What comes out once it is true; fails where a program ends before, or after START_S."""
    ends = time.monotonic() + START_S
    while not (found := true()):
        said = "".join(f"{path.name}: {path.read_text()[-3000:]}\n" for path in logs.glob("*.log"))
        assert all(one.poll() is None for one in running), said
        assert time.monotonic() < ends, said
        time.sleep(0.1)
    return found


def answers(ask: Callable[[], Any]) -> bool:
    """Whether a request is answered with success."""
    try:
        ask()
    except (HTTPError, URLError, ConnectionError, TimeoutError):
        return False
    return True


class Programs:
    """Programs that run until the tests are over, each with a log."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.running: tuple[subprocess.Popen[bytes], ...] = ()

    def start(self, name: str, *command: str) -> None:
        """Start a program."""
        log = self._stack.enter_context((self.folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "SELECTOR_SHIPPED": "on"}
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        self.running += (process,)

    def until(self, true: Callable[[], Any]) -> Any:
        """What comes out once it is true, as long as all programs run."""
        return until(true, self.running, self.folder)


def start_cluster(programs: Programs) -> Cluster:
    """An API server with its database; all on loopback."""
    folder, port = programs.folder, free_port()
    peers, clients = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    places = (
        ("--listen-client-urls", "--advertise-client-urls"),
        ("--listen-peer-urls", "--initial-advertise-peer-urls"),
    )
    urls = [
        f"{option}={url}" for options, url in zip(places, (clients, peers), strict=True) for option in options
    ]
    programs.start(
        "etcd", NAMED["ETCD"], f"--data-dir={folder}/etcd", f"--initial-cluster=default={peers}", *urls
    )
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,1,system:masters\n")
    key = folder / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    programs.start(
        "apiserver",
        NAMED["KUBE_APISERVER"],
        f"--etcd-servers={clients}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--external-hostname=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={folder}",
        f"--token-auth-file={folder}/tokens.csv",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-account-issuer=https://127.0.0.1",
        "--service-cluster-ip-range=10.0.0.0/24",
        # what these expect comes from controllers, which do not run here
        "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
    )
    cluster = Cluster(f"https://127.0.0.1:{port}")
    programs.until(lambda: answers(lambda: cluster.ask("/api/v1/namespaces/default")))
    programs.until(lambda: answers(lambda: cluster.ask(f"{CLASSES}/system-node-critical")))
    for name, value in {"low": 1, "high": 1000}.items():
        named = {"kind": "PriorityClass", "metadata": {"name": name}, "value": value}
        cluster.ask(CLASSES, {"apiVersion": "scheduling.k8s.io/v1", **named})
    return cluster


def configured(folder: Path, cluster: Cluster, extender: int) -> Path:
    """The configuration of docs/schedulers, with this cluster's address and this scheduler's apiVersion."""
    said = subprocess.run([NAMED["KUBE_SCHEDULER"], "--version"], check=True, capture_output=True, text=True)
    (minor,) = map(int, re.findall(r"v1\.(\d+)", said.stdout))
    text = CONFIGURATION.read_text()
    since = {int(start): version for version, start in re.findall(r"(v1beta\d) from 1\.(\d+)", text)}
    if minor < 25:  # as the file says
        text = re.sub(
            r"(config\.k8s\.io/)v1$",
            rf"\g<1>{since[max(one for one in since if one <= minor)]}",
            text,
            flags=re.M,
        )
    if minor < 23:  # it listened on all addresses for these
        text += f"healthzBindAddress: 127.0.0.1:{free_port()}\nmetricsBindAddress: 127.0.0.1:{free_port()}\n"
    user, there = folder / "scheduler.conf", {"server": cluster.url, "insecure-skip-tls-verify": True}
    contexts = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
    users = [{"name": "u", "user": {"token": TOKEN}}]
    whole = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": there}],
        "users": users,
    }
    user.write_text(json.dumps({**whole, "contexts": contexts, "current-context": "c"}))
    path = folder / "kube-scheduler.yaml"
    text = text.replace("/etc/kubernetes/scheduler.conf", str(user)).replace(
        "127.0.0.1:8010", f"127.0.0.1:{extender}"
    )
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with ExitStack() as stack:
        yield Programs(tmp_path_factory.mktemp("kubernetes"), stack)


@pytest.fixture(scope="module")
def running(programs: Programs) -> Cluster:
    """A cluster whose scheduler asks a `selector extender` that has just started."""
    cluster, port = start_cluster(programs), free_port()
    database = programs.folder / "measurements.sqlite"
    Database.open(database, create=True).close()
    command = [sys.executable, "-m", "kernel_selector.service.cli", "extender", f"--port={port}"]
    programs.start("extender", *command, f"--database={database}")
    path = configured(programs.folder, cluster, port)
    programs.until(lambda: answers(lambda: urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10)))
    options = f"--config={path}", "--bind-address=127.0.0.1", "--secure-port=0"
    programs.start("scheduler", NAMED["KUBE_SCHEDULER"], *options)
    return cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    running.add_node("fast", FAST)
    running.add_node("slow", SLOW)
    yield running
    running.clear()


def test_the_first_pod_goes_to_the_fastest_node(cluster: Cluster, programs: Programs) -> None:
    cluster.add_pod("translate", LAYER)
    programs.until(lambda: cluster.bound() == {"translate": "fast"})


def test_no_pod_is_evicted_from_where_another_cannot_run(cluster: Cluster, programs: Programs) -> None:
    """Of 1.20 and 1.21 it fails before the patch releases of August 2021: they asked no extender."""
    for name in ("first", "second"):
        cluster.add_pod(name, None)
    programs.until(lambda: None not in cluster.bound().values())
    before = cluster.bound()
    assert set(before.values()) == {"fast", "slow"}
    cluster.add_pod("nowhere", OF_NO_DEVICE, "high")
    assert "0/2 nodes are available" in programs.until(lambda: cluster.refusals("nowhere"))[0]
    assert cluster.bound() == {**before, "nowhere": None}
    cluster.add_pod("large", OF_20_GB, "high")
    kept = {name: node for name, node in before.items() if node == "slow"}
    programs.until(lambda: cluster.bound() == {**kept, "nowhere": None, "large": "fast"})


def test_a_pod_that_fits_nowhere_says_why(cluster: Cluster, programs: Programs) -> None:
    cluster.add_pod("huge", OF_NO_DEVICE)
    (said, *_) = programs.until(lambda: cluster.refusals("huge"))
    assert "NVIDIA H200 has 140 GiB" in said
    assert cluster.bound() == {"huge": None}
