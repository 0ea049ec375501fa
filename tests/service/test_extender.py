"""The scheduler extender speaks Kubernetes' types, in both forms, and never stops a pod by an error.

The shapes are those of kubernetes/kube-scheduler, extender/v1/types.go and its test of compatibility.
"""

import json
import time
from datetime import datetime, timedelta

import pytest
from starlette.testclient import TestClient

from kernel_selector.kernels import registry
from kernel_selector.service.extender import Extender, create_extender
from kernel_selector.service.logs import text_lines
from kernel_selector.service.recent import Recent
from kernel_selector.service.scheduling.extender_arguments import ANNOTATION
from kernel_selector.service.scheduling.kubernetes import judge
from selector import NoMeasurements, Selector
from selector.selection.query import Query
from tests.selector import replay
from tests.selector.conftest import here, trained_file  # noqa: F401 - fixtures

LABEL = "nvidia.com/gpu.product"
PRODUCT = replay.HERE.name.replace(" ", "-")
PROBLEM = {"operator": "lstm", "hyperparameters": {"hidden": 64, "batch": 8, "seq": 20}}
TOO_LARGE = {**PROBLEM, "memory": 1}


@pytest.fixture
def selector(request, trained_file):  # noqa: F811
    request.getfixturevalue("here")
    opened = Selector(trained_file)
    yield opened
    opened.close()


@pytest.fixture
def client(selector):
    """As Go's client sees it: only the answer counts, and 200 is the only good one."""
    app = create_extender(selector, nodes={"a": PRODUCT, "c": "NVIDIA-X"})
    return TestClient(app, raise_server_exceptions=False)


def node(name, product=None):
    labels = {LABEL: product} if product else {}
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": {"capacity": {"cpu": "4"}}}


def arguments(problem=PROBLEM, names=None, nodes=(("a", PRODUCT), ("b", None), ("c", "NVIDIA-X"))):
    annotation = problem if isinstance(problem, str) else json.dumps(problem)
    pod = {"metadata": {"name": "p", "annotations": {} if problem is None else {ANNOTATION: annotation}}}
    listed = None if names is not None else {"metadata": {}, "items": [node(*one) for one in nodes]}
    return {"Pod": pod, "Nodes": listed, "NodeNames": names}


def post(client, verb, body):
    answer = client.post(f"/k8s/v1/{verb}", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def test_whole_nodes(client):
    body = arguments()
    found = post(client, "filter", body)
    assert found == {
        "Nodes": body["Nodes"],  # as they came
        "NodeNames": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }
    scores = post(client, "prioritize", body)
    assert scores == [{"Host": "a", "Score": 10}, {"Host": "b", "Score": 5}, {"Host": "c", "Score": 5}]


def test_names_alone(client):
    body = arguments(names=["b", "a"])
    assert post(client, "filter", body)["NodeNames"] == ["b", "a"]
    assert post(client, "filter", body)["Nodes"] is None
    assert post(client, "prioritize", body) == [{"Host": "b", "Score": 5}, {"Host": "a", "Score": 10}]


@pytest.mark.parametrize("names", [None, ["a", "b"]])
def test_what_does_not_fit_says_why(client, names):
    found = post(client, "filter", arguments(TOO_LARGE, names=names))
    (message,) = found["FailedAndUnresolvableNodes"].values()
    assert found["FailedAndUnresolvableNodes"].keys() == {"a"}
    assert "Nothing fits into memory=1 bytes" in message
    # older schedulers do not know the other field
    assert found["FailedNodes"] == found["FailedAndUnresolvableNodes"]
    kept = found["NodeNames"] or [item["metadata"]["name"] for item in found["Nodes"]["items"]]
    assert "a" not in kept
    assert "b" in kept
    assert post(client, "prioritize", arguments(TOO_LARGE, names=names))[0] == {"Host": "a", "Score": 0}


def test_keys_in_any_case(client):
    body = arguments()
    lower = {"pod": body["Pod"], "nodes": body["Nodes"], "nodenames": None, "unknown": 1}
    assert post(client, "prioritize", lower) == post(client, "prioritize", body)
    assert post(client, "filter", lower) == post(client, "filter", body)


@pytest.mark.parametrize(
    "problem",
    [
        None,
        "",
        "{",
        "null",
        "[]",
        "{}",
        "[" * 100_000,
        {"operator": "nonesuch", "hyperparameters": {}},
        {**PROBLEM, "hyperparameters": {"hidden": 0}},
        {**PROBLEM, "unknown": 1},
        {**PROBLEM, "objective": "fast"},
        {**PROBLEM, "memory": "much"},
    ],
    ids=range(12),
)
def test_a_pod_without_a_usable_problem_is_none_of_our_business(client, problem):
    body = arguments(problem)
    assert post(client, "filter", body)["Nodes"] == body["Nodes"]
    assert {item["Score"] for item in post(client, "prioritize", body)} == {5}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"1",
        b"\xff",
        b"[" * 100_000,
        b'{"Nodes": 1}',
        b'{"Nodes": 0}',
        b'{"Nodes": []}',
        b'{"Nodes": {"items": [1]}}',
        b'{"NodeNames": {"a": 1}}',
        b'{"NodeNames": "ab"}',
        b'{"Pod": NaN}',
    ],
)
def test_what_is_not_understood_is_neutral(client, body):
    for verb in ("filter", "prioritize"):
        answer = client.post(f"/k8s/v1/{verb}", content=body)
        assert answer.status_code == 200
        if verb == "filter":
            assert answer.json()["Error"].startswith("Not understood")
        else:
            assert answer.json() == []


def test_a_node_with_a_number_beyond_all_is_not_understood(client):
    """Python's parser takes it for infinity, which no JSON has: filter ended in a 500."""
    body = b'{"Nodes": {"items": [{"metadata": {"name": "a", "x": 1e400}}]}}'
    answer = client.post("/k8s/v1/filter", content=body)
    assert answer.status_code == 200
    assert answer.json()["Error"].startswith("Not understood")
    assert client.post("/k8s/v1/prioritize", content=body).json() == [{"Host": "a", "Score": 5}]


@pytest.mark.parametrize("listed", [{}, {"metadata": {}}, {"items": None}, {"Items": []}], ids=str)
def test_a_list_without_nodes(client, listed):
    found = post(client, "filter", {**arguments(), "Nodes": listed})
    assert not any(found["Nodes"].values())
    assert found["Error"] == ""
    assert post(client, "prioritize", {**arguments(), "Nodes": listed}) == []


@pytest.mark.parametrize("pod", [None, 1, "x", {}, {"metadata": 1}, {"metadata": {"annotations": [1]}}])
def test_pods_that_are_none(client, pod):
    body = {**arguments(), "Pod": pod}
    assert post(client, "filter", body)["FailedAndUnresolvableNodes"] == {}
    assert len(post(client, "prioritize", body)) == 3


def test_half_of_a_character_comes_back(client):
    body = json.dumps(arguments(nodes=((r"\ud800", None),))).replace("\\\\", "\\")
    answer = client.post("/k8s/v1/filter", content=body)
    assert answer.status_code == 200
    assert "\\ud800" in answer.text


def test_an_error_of_ours_stops_no_pod(client, monkeypatch):
    def fail(*_):
        raise RuntimeError("anything")

    monkeypatch.setattr("kernel_selector.service.extender.judge", fail)
    assert post(client, "filter", arguments(TOO_LARGE))["FailedAndUnresolvableNodes"] == {}
    assert {item["Score"] for item in post(client, "prioritize", arguments())} == {5}


def test_scores_are_whole_numbers_of_the_speed(selector, monkeypatch):
    from kernel_selector.service.scheduling import kubernetes
    from kernel_selector.service.scheduling.placement import Throughput

    times = {"nvidia-h200": 1.0, "tesla-t4": 3.0, "nvidia-l4": 100.0, "nvidia-a10": None}

    def throughputs(_, __, keys):
        return [
            Throughput(job="pod", device=key, batch=1, feasible=True, reason="", time_ms=times[key])
            for key in keys
        ]

    monkeypatch.setattr(kubernetes, "throughputs", throughputs)
    products = ["NVIDIA-H200", "Tesla-T4", "NVIDIA-L4", "NVIDIA-A10", "NVIDIA-H200-SHARED", "NVIDIA-X"]
    found = {name: verdict.score for name, verdict in judge(selector, Query(), products).items()}
    assert list(found.values()) == [10, 3, 1, 5, 10, 5]


@pytest.mark.parametrize("form", ["whole", "names"])
def test_a_hundred_nodes_take_milliseconds(selector, form):
    products = {f"node-{number}": PRODUCT for number in range(100)}
    names = list(products) if form == "names" else None
    body = json.dumps(arguments(names=names, nodes=products.items())).encode()
    extender = Extender(selector, products)
    extender.filter(body)
    spent = []
    for _ in range(5):
        started = time.process_time()
        assert extender.filter(body)["FailedAndUnresolvableNodes"] == {}
        assert len(extender.prioritize(body)) == 100
        spent.append(time.process_time() - started)
    assert min(spent) < 0.010


def preemption(problem=PROBLEM, *, kind="NodeNameToVictims", nodes=("a", "b")):
    """What the scheduler sends: whole pods, or their UIDs where `nodeCacheCapable` is true."""
    whole = kind == "NodeNameToVictims"
    pods = {
        name: [{"metadata": {"name": "v", "uid": f"uid-{name}"}}] if whole else [{"UID": f"uid-{name}"}]
        for name in nodes
    }
    victims = {name: {"Pods": pods[name], "NumPDBViolations": 1} for name in nodes}
    other = "NodeNameToMetaVictims" if whole else "NodeNameToVictims"
    return {"Pod": arguments(problem)["Pod"], kind: victims, other: None}


KINDS = ("NodeNameToVictims", "NodeNameToMetaVictims")


@pytest.mark.parametrize("kind", KINDS)
def test_no_pod_is_evicted_from_a_node_that_filter_refuses(client, kind):
    found = post(client, "preempt", preemption(TOO_LARGE, kind=kind))
    assert found == {
        "NodeNameToMetaVictims": {"b": {"Pods": [{"UID": "uid-b"}], "NumPDBViolations": 1}},
    }
    kept = post(client, "preempt", preemption(kind=kind))
    assert kept["NodeNameToMetaVictims"].keys() == {"a", "b"}
    assert kept["NodeNameToMetaVictims"]["a"] == {"Pods": [{"UID": "uid-a"}], "NumPDBViolations": 1}


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_products_for_a_preemption_are_those_of_the_nodes_that_came_before(selector, verb):
    client = TestClient(create_extender(selector))
    asked = preemption(TOO_LARGE)
    assert post(client, "preempt", asked)["NodeNameToMetaVictims"].keys() == {"a", "b"}
    post(client, verb, arguments(None))  # of any pod
    assert post(client, "preempt", asked)["NodeNameToMetaVictims"].keys() == {"b"}
    post(client, verb, arguments(None, nodes=[("a", "NVIDIA-X"), ("b", PRODUCT)]))  # as they are labelled now
    assert post(client, "preempt", asked)["NodeNameToMetaVictims"].keys() == {"a"}


def test_a_pod_without_a_problem_may_evict_as_ever(client):
    for problem in (None, "{", {**PROBLEM, "unknown": 1}):
        assert post(client, "preempt", preemption(problem))["NodeNameToMetaVictims"].keys() == {"a", "b"}
    assert post(client, "preempt", preemption(nodes=()))["NodeNameToMetaVictims"] == {}


@pytest.mark.parametrize(
    "victims",
    [
        {},
        {"NodeNameToVictims": None, "NodeNameToMetaVictims": None},
        {"NodeNameToVictims": ["a"]},
        {"NodeNameToVictims": {"a": None}},
        {"NodeNameToMetaVictims": {"a": None}},
        {"NodeNameToMetaVictims": {"a": {"Pods": [], "NumPDBViolations": "x"}}},
        {"NodeNameToMetaVictims": {"a": {"Pods": [], "NumPDBViolations": 1.5}}},
        {"NodeNameToVictims": {"a": {"Pods": [{"metadata": {"name": "no uid"}}]}}},
        {"NodeNameToMetaVictims": {"a": {"Pods": [1]}}},
    ],
)
def test_a_preemption_that_is_not_understood_is_an_error(client, victims):
    """The scheduler then leaves this extender out; an empty answer would say that evicting helps nowhere."""
    answer = client.post("/k8s/v1/preempt", json={"Pod": {}, **victims})
    assert answer.status_code == 400
    assert answer.json()["Error"].startswith("Not understood")


def test_it_warms_up_before_it_listens(monkeypatch, empty_database):
    """The scheduler waits 500 ms; the first question about an operator took up to a second."""
    asked = []

    def counted(_, queries, *, kept):
        assert not kept
        asked.extend((query.operator, query.device) for query in queries)
        return [None]

    monkeypatch.setattr(Selector, "choose_each", counted)
    opened = Selector(empty_database, shipped=True)
    keys = {device["key"]: None for device in opened.devices() if device["measured"]}
    with TestClient(create_extender(opened)):
        assert asked == [(name, key) for name in registry.operators() for key in keys]


def test_the_first_question_is_answered_in_time(monkeypatch, tmp_path):
    operators = {"gru": registry.operator("gru")}
    monkeypatch.setattr("kernel_selector.kernels.registry.operators", lambda: operators)
    monkeypatch.setenv("SELECTOR_DATABASE_URL", str(tmp_path / "none.sqlite"))
    opened = Selector(shipped=True)
    with TestClient(create_extender(opened)) as client:
        assert client.get("/readyz").json() == {"status": "ready"}
        assert not list(tmp_path.glob("*.asked.jsonl"))  # nobody asked what it warmed up with
        nodes = (("a", "NVIDIA-H200"), ("b", "NVIDIA-H100-80GB-HBM3"), ("c", "NVIDIA-A100-SXM4-80GB"))
        problem = {"operator": "gru", "hyperparameters": {"hidden": 1000, "batch": 60}}
        started = time.process_time()
        scores = post(client, "prioritize", arguments(problem, nodes=nodes))
        assert time.process_time() - started < 0.25
    assert scores[0] == {"Host": "a", "Score": 10}
    opened.close()


def test_without_anything_to_answer_from_it_lives_and_is_not_ready(tmp_path, monkeypatch):
    monkeypatch.setenv("SELECTOR_DATABASE_URL", str(tmp_path / "none.sqlite"))
    with TestClient(create_extender(Selector(shipped=False))) as client:
        assert client.get("/healthz").status_code == 200
        answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "no measurements" in answer.json()["reason"]


def test_what_cannot_be_read_is_no_reason_to_stop(monkeypatch, caplog, empty_database):
    def broken(*_, **__):
        raise NoMeasurements("gone")

    monkeypatch.setattr(Selector, "choose_each", broken)
    opened = Selector(empty_database, shipped=True)
    with TestClient(create_extender(opened)) as client:
        assert client.get("/healthz").status_code == 200
    assert any("not warmed up: gone" in record.getMessage() for record in caplog.records)


def test_what_is_remembered_is_bounded():
    recent = Recent(2)
    assert [recent.put(key, key.upper()) for key in "abac"] == [True, True, False, True]
    assert [recent.get(key) for key in "abc"] == ["A", None, "C"]


def test_a_product_that_is_not_known_is_logged_once(client, caplog):
    for verb in ("filter", "prioritize", "filter"):
        post(client, verb, arguments(nodes=(("a", PRODUCT), ("b", None), ("c", "NVIDIA-FR\nOB"))))
    log = text_lines()
    lines = [log.format(record) for record in caplog.records if "known by name" in record.getMessage()]
    assert len(lines) == 1
    assert "NVIDIA-FR\\nOB of node c" in lines[0]


def test_a_pod_without_an_answer_is_logged_once_by_name_and_time(client, caplog):
    def body(name, uid):
        asked = arguments({**PROBLEM, "unknown": 1})
        asked["Pod"]["metadata"] |= {"name": name, "namespace": "team", "uid": uid}
        return asked

    for name, uid in (("p", "1"), ("q", "2"), ("p", "1"), ("p\n\x1b[31m", "3")):
        for verb in ("filter", "prioritize"):
            post(client, verb, body(name, uid))
    log = text_lines()  # as `selector extender` writes them
    lines = [log.format(record) for record in caplog.records if "has no answer" in record.getMessage()]
    assert [line.split(" has")[0].split(" pod ")[1] for line in lines] == [
        "team/p",
        "team/q",
        r"team/p\n\x1b[31m",
    ]
    for line in lines:
        assert datetime.fromisoformat(line.split()[0]).utcoffset() == timedelta(0)
        assert "unknown" in line
