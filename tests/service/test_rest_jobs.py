"""Profiling jobs over HTTP: made once, worked off by workers without a database, cancelled."""

import json
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from kernel_selector.db import Database, records
from kernel_selector.kernels import registry
from kernel_selector.service import tokens
from kernel_selector.service.app import create_app
from kernel_selector.service.fleet.service_queue import ServiceQueue
from kernel_selector.service.fleet.worker import Worker
from selector import Selector
from tests.selector import replay
from tests.selector.replay_session import ReplaySession

JOB = {
    "operator": "lstm",
    "problems": [{"hyperparameters": {"hidden": 32, "batch": size}} for size in (1, 8)],
    "devices": ["cpu"],
}
CANDIDATES = len(registry.implementations("lstm"))
CLAIM = {
    "worker": "w1",
    "device": replay.HERE.to_dict(),
    "environment": replay.SOFTWARE.to_dict(),
    "lease_s": 60,
}


class Session(ReplaySession):
    def close(self):
        pass


class InProcess:
    """Asks the service without a network, as `selector.Client` does over one."""

    def __init__(self, client, token):
        from selector import Client

        self._real = Client("http://127.0.0.1", token=token)
        self._real._exchange = self.exchange
        self.client = client

    def exchange(self, method, path, body, headers):
        answer = self.client.request(method, path, content=body, headers=headers)
        return answer.status_code, answer.content

    def ask(self, *arguments):
        return self._real.ask(*arguments)

    def close(self):
        self._real.close()


@pytest.fixture
def service(empty_database, monkeypatch):
    """A function: a client with a token of these scopes."""
    monkeypatch.setattr(tokens, "LOOK_S", 0.0)
    selector = Selector(empty_database)
    app = create_app(selector)
    with TestClient(app, base_url="http://127.0.0.1") as started:

        def client(*scopes):
            secret = tokens.create_token(empty_database, "-".join(scopes), scopes=scopes)
            started.headers["authorization"] = f"Bearer {secret}"
            return started

        yield client
    selector.close()


@pytest.fixture
def client(service):
    return service("admin", "measure", "read")


def create(client, job=JOB, status=202, **headers):
    answer = client.post("/v1/profiling-jobs", json=job, headers=headers)
    assert answer.status_code == status, answer.text
    return answer


def stored(path):
    with Database.open(path) as database, database.read() as connection:
        return records.total(connection)


def post(client, verb, body, status=200):
    answer = client.post(f"/v1/profiling-tasks:{verb}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_job_is_accepted_and_looked_at(client):
    answer = create(client)
    made = answer.json()
    assert answer.headers["location"] == f"/v1/profiling-jobs/{made['id']}"
    assert (made["state"], made["author"], made["tasks"]["queued"]) == ("queued", "admin-measure-read", 2)
    found = client.get(answer.headers["location"])
    assert found.json() == made
    unchanged = {"if-none-match": found.headers["etag"]}
    assert client.get(answer.headers["location"], headers=unchanged).status_code == 304


def test_the_same_key_is_the_same_job(client):
    first = create(client, **{"Idempotency-Key": "k"})
    assert create(client, **{"Idempotency-Key": "k"}).json() == first.json()
    assert create(client).json()["id"] != first.json()["id"]
    other = create(client, {**JOB, "again": True}, 422, **{"Idempotency-Key": "k"}).json()
    assert other["type"].endswith(":idempotency-key-reused")
    create(client, JOB, 422, **{"Idempotency-Key": "k" * 201})


def test_a_worker_needs_the_url_and_a_token_alone(client, empty_database):
    number = create(client).json()["id"]
    token = client.headers["authorization"].split()[1]
    worker = Worker(ServiceQueue(InProcess(client, token)), lambda _: Session(), name="w1")
    assert worker.run(until_empty=True).to_dict()["records"] == 2 * CANDIDATES
    found = client.get(f"/v1/profiling-jobs/{number}").json()
    assert (found["state"], found["tasks"]["done"], found["records"]) == ("done", 2, 2 * CANDIDATES)
    assert stored(empty_database) == 2 * CANDIDATES
    items = client.get("/v1/measurements", params={"limit": 3}).json()["items"]
    assert {item["author"] for item in items} == {"admin-measure-read"}
    create(client)
    again = Worker(ServiceQueue(InProcess(client, token)), lambda _: Session())
    assert again.run(until_empty=True).to_dict()["records"] == 0  # all of it is measured already


def test_records_of_a_task_that_is_lost_are_refused_and_said_so(client, empty_database):
    create(client, {**JOB, "problems": JOB["problems"][:1]})
    task = post(client, "claim", CLAIM)["assignment"]
    with Database.open(empty_database) as database, database.write() as connection:
        connection.exec_driver_sql("UPDATE task SET renewed_s = renewed_s - 61")
    other = post(client, "claim", {**CLAIM, "worker": "w2"})["assignment"]
    assert other["task"] == task["task"]
    problem = registry.operator("lstm").problem(JOB["problems"][0]["hyperparameters"])
    record = json.loads(replay.record(problem, "torch_lstm").to_json())
    held, end = {"task": task["task"], "lease": task["lease"]}, {"outcome": "done", "records": [record]}
    assert post(client, "heartbeat", held, 409)["type"].endswith(":task-lost")
    lost = post(client, "finish", {**held, **end}, 409)
    assert "another worker has it" in lost["detail"]
    assert stored(empty_database) == 0
    mine = {"task": other["task"], "lease": other["lease"]}
    assert post(client, "heartbeat", mine) == {"task": other["task"]}
    counts = {"received": 1, "added": 1, "known": 0, "quarantined": 0}
    counts |= {"waiting": 0, "known_waiting": 0, "known_retracted": 0}
    assert post(client, "finish", {**mine, **end}) == counts
    assert post(client, "finish", {**mine, **end}) == {**counts, "added": 0, "known": 1}
    assert stored(empty_database) == 1
    assert client.get("/v1/profiling-jobs/1").json()["records"] == 1


def test_one_bad_record_leaves_the_task_as_it_was(client, empty_database):
    create(client)
    task = post(client, "claim", CLAIM)["assignment"]
    end = {"task": task["task"], "lease": task["lease"], "outcome": "done", "records": [{"schema": 1}]}
    assert post(client, "finish", end, 422)["type"].endswith(":not-records")
    assert post(client, "heartbeat", {"task": task["task"], "lease": task["lease"]})
    assert stored(empty_database) == 0


def test_a_lease_is_of_use_with_its_own_token_alone(service, empty_database):
    client = service("admin", "measure", "read")
    create(client)
    task = post(client, "claim", CLAIM)["assignment"]
    held, mine = {"task": task["task"], "lease": task["lease"]}, client.headers["authorization"]
    problem = registry.operator("lstm").problem(task["problem"]["hyperparameters"])
    record = json.loads(replay.record(problem, "torch_lstm").to_json())
    service("measure")  # another token, and what it has seen of the lease
    assert post(client, "heartbeat", held, 409)["type"].endswith(":task-lost")
    for end in (
        {"outcome": "done", "records": [record]},
        {"outcome": "failed", "reason": "no luck"},
        {"outcome": "returned"},
    ):
        assert post(client, "finish", {**held, **end}, 409)["type"].endswith(":task-lost")
    assert stored(empty_database) == 0
    client.headers["authorization"] = mine
    post(client, "heartbeat", held)
    assert post(client, "finish", {**held, "outcome": "done", "records": [record]})["added"] == 1


def test_a_rotated_token_keeps_its_leases(client, empty_database):
    create(client)
    task = post(client, "claim", CLAIM)["assignment"]
    secret = tokens.rotate_token(empty_database, "admin-measure-read", grace_hours=0)
    client.headers["authorization"] = f"Bearer {secret}"
    post(client, "heartbeat", {"task": task["task"], "lease": task["lease"]})


def test_a_task_is_done_with_records_of_its_problem_or_a_reason(client, empty_database):
    number = create(client).json()["id"]
    task = post(client, "claim", CLAIM)["assignment"]
    held = {"task": task["task"], "lease": task["lease"], "outcome": "done"}
    lstm = registry.operator("lstm")
    problem = lstm.problem(task["problem"]["hyperparameters"])
    mine = replay.record(problem, "torch_lstm")
    others = {
        "the task's problem": replay.record(lstm.problem(hidden=33, batch=3), "torch_lstm"),
        "the task's device": replace(mine, device=replace(replay.HERE, name="NVIDIA H200", kind="cuda")),
    }
    for words, other in others.items():
        for sent in ([other], [mine, other]):
            documents = [json.loads(one.to_json()) for one in sent]
            refused = post(client, "finish", {**held, "records": documents}, 422)
            assert (refused["type"].endswith(":invalid-request"), words in refused["detail"]) == (True, True)
    assert "records or the reason" in post(client, "finish", held, 422)["detail"]
    assert stored(empty_database) == 0
    assert client.get(f"/v1/profiling-jobs/{number}").json()["tasks"]["running"] == 1
    post(client, "finish", {**held, "reason": "all of it had been measured before"})
    done, _ = client.get(f"/v1/profiling-jobs/{number}/tasks").json()["items"]
    assert (done["state"], done["records"], done["reason"][:6]) == ("done", 0, "all of")


def test_names_of_hosts_are_for_admins(service):
    client = service("admin", "measure", "read")
    number = create(client).json()["id"]
    post(client, "claim", CLAIM)
    path = f"/v1/profiling-jobs/{number}/tasks"
    assert [item["owner"] for item in client.get(path).json()["items"]] == ["w1", None]
    assert [item["owner"] for item in service("read").get(path).json()["items"]] == [None, None]


def test_what_workers_wrote_is_for_admins(service):
    client = service("admin", "measure", "read")
    number = create(client, {**JOB, "max_attempts": 1, "problems": JOB["problems"][:1]}).json()["id"]
    task = post(client, "claim", CLAIM)["assignment"]
    wrote = "no room in /srv/cache on node7"
    post(
        client, "finish", {"task": task["task"], "lease": task["lease"], "outcome": "failed", "reason": wrote}
    )
    paths = ("/v1/profiling-jobs", f"/v1/profiling-jobs/{number}", f"/v1/profiling-jobs/{number}/tasks", "/")
    assert all(wrote in client.get(path).text for path in paths)
    read = service("read")
    told = [read.get(path) for path in paths]
    assert [answer.status_code for answer in told] == [200] * 4
    assert not any("node7" in answer.text for answer in told)
    assert "a token with the scope" in told[-1].text


def test_failures_and_returns(client):
    number = create(client, {**JOB, "max_attempts": 1, "problems": JOB["problems"][:1]}).json()["id"]
    for outcome, reason, state in (("returned", "", "queued"), ("failed", "no\nluck\0", "failed")):
        task = post(client, "claim", CLAIM)["assignment"]
        end = {"task": task["task"], "lease": task["lease"], "outcome": outcome, "reason": reason}
        post(client, "finish", end)
        told = client.get(f"/v1/profiling-jobs/{number}/tasks").json()
        assert post(client, "finish", end)["received"] == 0  # the same again, of an answer that was lost
        assert client.get(f"/v1/profiling-jobs/{number}/tasks").json() == told
        assert client.get(f"/v1/profiling-jobs/{number}").json()["state"] == state
    (item,) = client.get(f"/v1/profiling-jobs/{number}/tasks").json()["items"]
    assert (item["state"], item["reason"], item["owner"]) == ("failed", "no luck", "w1")
    assert post(client, "claim", CLAIM) == {"assignment": None, "pending": 0}


def test_a_task_that_is_returned_for_ever_has_failed(client):
    number = create(client, {**JOB, "problems": JOB["problems"][:1]}).json()["id"]

    def end(outcome):
        task = post(client, "claim", CLAIM)["assignment"]
        held = {"task": task["task"], "lease": task["lease"]}
        post(client, "finish", {**held, "outcome": outcome, "reason": f"is {outcome}"})
        return client.get(f"/v1/profiling-jobs/{number}").json()

    states = [end(outcome)["state"] for outcome in ("returned",) * 4 + ("failed",) + ("returned",) * 4]
    assert states == ["queued"] * 9  # an attempt between begins anew
    job = end("returned")
    assert (job["state"], job["reasons"]) == (
        "failed",
        ["returned 5 times, as often as a task may be: is returned"],
    )
    (item,) = client.get(f"/v1/profiling-jobs/{number}/tasks").json()["items"]
    assert item["attempts"] <= 3
    assert post(client, "claim", CLAIM) == {"assignment": None, "pending": 0}


def test_pages_of_jobs_and_tasks(client):
    numbers = [create(client).json()["id"] for _ in range(3)]
    for path, expected in (
        ("/v1/profiling-jobs", numbers),
        (f"/v1/profiling-jobs/{numbers[1]}/tasks", [3, 4]),
    ):
        found, cursor = [], None
        while cursor is not None or not found:
            page = client.get(path, params={"limit": 1, **({"cursor": cursor} if cursor else {})}).json()
            found += [item["id"] for item in page["items"]]
            cursor = page["next"]
        assert found == expected


def test_cancelling(client):
    path = create(client).headers["location"]
    task = post(client, "claim", CLAIM)["assignment"]
    for _ in range(2):
        answer = client.delete(path)
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    post(client, "heartbeat", {"task": task["task"], "lease": task["lease"]}, 409)
    assert post(client, "claim", CLAIM) == {"assignment": None, "pending": 0}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"operator": "lstmm"}, "unknown-operator"),
        ({"devices": ["h2000"]}, "unknown-device"),
        ({"devices": []}, "invalid-request"),
        ({"problems": []}, "invalid-request"),
        ({"problems": [{"hyperparameters": {"hidden": 32}}]}, "invalid-hyperparameter"),
        ({"problems": [{"hyperparameters": {"hiden": 32, "batch": 1}}]}, "unknown-hyperparameter"),
        ({"policy": "quickest"}, "unknown-policy"),
        ({"implementations": ["fuse"]}, "unknown-implementation"),
        ({"max_attempts": 0}, "invalid-request"),
        ({"max_attempts": 2**70}, "invalid-request"),
        ({"max_attempts": True}, "invalid-request"),
        ({"again": 1}, "invalid-request"),
        ({"devices": ["cpu\0"]}, "invalid-request"),
        ({"colour": "red"}, "invalid-request"),
    ],
)
def test_jobs_that_are_none(client, change, kind):
    answer = create(client, {**JOB, **change}, 422).json()
    assert answer["type"].endswith(f":{kind}"), answer
    assert client.get("/v1/profiling-jobs").json() == {"items": [], "next": None}


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("claim", {**CLAIM, "device": {}}),
        ("claim", {**CLAIM, "device": {**CLAIM["device"], "colour": "red"}}),
        ("claim", {**CLAIM, "device": {**CLAIM["device"], "name": 7}}),
        ("claim", {**CLAIM, "device": {**CLAIM["device"], "kind": "\0"}}),
        ("claim", {**CLAIM, "device": {**CLAIM["device"], "compute_capability": 7}}),
        ("claim", {**CLAIM, "environment": {"python": "3"}}),
        ("claim", {**CLAIM, "environment": {**CLAIM["environment"], "threads": -1}}),
        ("claim", {**CLAIM, "lease_s": 0.5}),
        ("claim", {**CLAIM, "lease_s": 1e300}),
        ("claim", {**CLAIM, "lease_s": 3601}),
        ("claim", {**CLAIM, "worker": ""}),
        ("heartbeat", {"task": 1, "lease": "x"}),
        ("heartbeat", {"task": 0, "lease": "0" * 32}),
        ("heartbeat", {"task": 2**63, "lease": "0" * 32}),
        ("heartbeat", {"task": "1", "lease": "0" * 32}),
        ("finish", {"task": 1, "lease": "0" * 32}),
        ("finish", {"task": 1, "lease": "0" * 32, "outcome": "finished"}),
        ("finish", {"task": 1, "lease": "0" * 32, "outcome": "failed"}),
        ("finish", {"task": 1, "lease": "0" * 32, "outcome": "failed", "reason": " \0"}),
        ("finish", {"task": 1, "lease": "0" * 32, "outcome": "done", "records": [1]}),
    ],
)
def test_workers_that_talk_nonsense(client, verb, body):
    answer = post(client, verb, body, 422)
    assert answer["type"].startswith("urn:kernel-selector:problem:")


@pytest.mark.parametrize("path", ["/v1/profiling-jobs/7", "/v1/profiling-jobs/7/tasks"])
def test_jobs_that_do_not_exist(client, path):
    answer = client.get(path)
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:kernel-selector:problem:unknown-job")
    assert client.delete("/v1/profiling-jobs/7").status_code == 404
    for number in ("0", "-1", "x", str(2**63)):
        assert client.get(f"/v1/profiling-jobs/{number}").status_code == 422


@pytest.mark.parametrize(
    ("scopes", "method", "path", "allowed"),
    [
        (("read",), "POST", "/v1/profiling-jobs", False),
        (("measure",), "POST", "/v1/profiling-jobs", False),
        (("read", "measure"), "DELETE", "/v1/profiling-jobs/1", False),
        (("read",), "POST", "/v1/profiling-tasks:claim", False),
        (("admin",), "POST", "/v1/profiling-tasks:finish", False),
        (("measure",), "POST", "/v1/profiling-tasks:claim", True),
        (("read",), "GET", "/v1/profiling-jobs", True),
        (("admin",), "DELETE", "/v1/profiling-jobs/1", True),
    ],
)
def test_scopes(service, scopes, method, path, allowed):
    status = service(*scopes).request(method, path).status_code
    assert (status != 403) is allowed
    assert status != 401


def test_the_queue_is_counted(client):
    create(client)
    post(client, "claim", CLAIM)
    lines = client.get("/metrics").text.splitlines()
    assert 'selector_tasks{device="cpu",state="queued"} 1.0' in lines
    assert 'selector_tasks{device="cpu",state="running"} 1.0' in lines
    assert 'selector_tasks{device="cpu",state="failed"} 0.0' in lines
    assert "selector_lease_expiries 0.0" in lines
