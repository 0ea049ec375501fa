"""Measurements over HTTP: taken in once, all or none, by name, and set aside where they contradict."""

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from starlette.testclient import TestClient

from kernel_selector.db import Database, records, snapshot
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Record, Status, Timing
from kernel_selector.service import tokens
from kernel_selector.service.app import create_app
from kernel_selector.service.ingest.review import Review
from kernel_selector.service.openapi.example_record import LINE
from selector import Selector
from tests.service.conftest import measured_records

NDJSON = {"content-type": "application/x-ndjson"}
ALL_COUNT = {"waiting": 0, "known_waiting": 0, "known_retracted": 0}


def scaled(record, factor, driver="another"):
    def times(timing):
        return Timing(
            p20_ms=timing.p20_ms * factor,
            p50_ms=timing.p50_ms * factor,
            p80_ms=timing.p80_ms * factor,
            samples=timing.samples,
        )

    return replace(
        record,
        forward=times(record.forward),
        forward_backward=times(record.forward_backward),
        environment=replace(record.environment, driver=driver),
    )


@pytest.fixture(scope="module")
def made():
    """Records of times that a processor can reach."""
    return [scaled(record, 100, driver=record.environment.driver) for record in measured_records()]


@pytest.fixture
def database(empty_database):
    return empty_database


@pytest.fixture
def client(database, made, monkeypatch):
    monkeypatch.setattr("selector.selection.selector.CHECK_S", 0.0)
    # one probe for all: on a busy machine the next one may say something else
    monkeypatch.setattr("selector.selection.devices._probed", lambda _: made[0].device)
    secret = tokens.create_token(database, "worker-7", scopes=["measure", "read", "admin"])
    selector = Selector(database)
    headers = {"authorization": f"Bearer {secret}"}
    with TestClient(create_app(selector), base_url="http://127.0.0.1", headers=headers) as started:
        yield started
    selector.close()


def send(client, found, **headers):
    lines = "".join(f"{one.to_json()}\n" if isinstance(one, Record) else f"{one}\n" for one in found)
    return client.post("/v1/measurements", content=lines, headers={**NDJSON, **headers})


def receipt(client, found):
    answer = send(client, found)
    assert answer.status_code == 200, answer.text
    return answer.json()


def stored(database):
    with Database.open(database) as opened, opened.read() as connection:
        return list(records.find(connection))


def test_records_are_stored_once_and_used(client, database, made):
    first = receipt(client, made)
    assert first == {"received": len(made), "added": len(made), "known": 0, "quarantined": [], **ALL_COUNT}
    assert receipt(client, made)["known"] == len(made)
    assert stored(database) == made
    sizes = dict(made[0].problem.values)
    question = {"hyperparameters": {"hidden": sizes["hidden"], "batch": sizes["batch"]}}
    assert client.post("/v1/choices", json=question).json()["source"] == "exact"


def test_pages_name_the_author_and_can_be_sent_on(client, made):
    receipt(client, made)
    found, cursor = [], None
    while True:
        given = {"limit": 7, **({"cursor": cursor} if cursor else {})}
        answer = client.get("/v1/measurements", params=given).json()
        found += answer["items"]
        cursor = answer["next"]
        if cursor is None:
            break
    assert {item["author"] for item in found} == {"worker-7"}
    assert [Record.from_json(json.dumps(item["record"])) for item in found] == made
    assert receipt(client, [json.dumps(item["record"]) for item in found])["known"] == len(made)


def test_filters(client, made):
    receipt(client, made)
    count = sum(record.implementation == made[0].implementation for record in made)
    for params, expected in (
        ({"implementation": made[0].implementation}, count),
        ({"operator": "gru"}, 0),
        ({"device": made[0].device.key, "status": "ok"}, len(made)),
        ({"status": "crashed"}, 0),
        ({"regime": "launched"}, len(made)),
        ({"regime": "compiled"}, 0),
    ):
        assert len(client.get("/v1/measurements", params=params).json()["items"]) == expected


@pytest.mark.parametrize(
    "params",
    [
        {"operator": "\0"},
        {"device": "a\nb"},
        {"implementation": "\0"},
        {"cursor": "x"},
        {"cursor": "YWZ0ZXIgLTE"},
        {"limit": 0},
        {"limit": 1001},
        {"status": "fine"},
        {"regime": "eager"},
    ]
    + [{"cursor": cursor} for cursor in ("YWZ0ZXIgOTk5OTk5OTk5OTk5OTk5OTk5OTk5", "é", "", "a" * 101)],
)
def test_pages_that_are_none(client, params):
    answer = client.get("/v1/measurements", params=params)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_one_bad_line_stores_nothing(client, database, made):
    bad = ["{", '{"schema": 1}', made[0].to_json().replace('"seed": 0', '"seed": NaN')]
    answer = send(client, [made[0], *bad, made[1]])
    assert answer.status_code == 422
    document = answer.json()
    assert document["type"].endswith(":not-records")
    assert [fault["line"] for fault in document["errors"]] == [2, 3, 4]
    assert stored(database) == []


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", NDJSON, 422),
        (b"\n \n", NDJSON, 422),
        (b"\xff\xfe", NDJSON, 400),
        (b"{}", {"content-type": "application/json"}, 415),
        (b"[" * 100_000, NDJSON, 422),
        (b"[]\n1\nnull\n", NDJSON, 422),
        (b" " * (16 * 2**20 + 1), NDJSON, 413),
    ],
)
def test_bodies_that_are_no_records(client, body, headers, status):
    answer = client.post("/v1/measurements", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("name", "value"), [("reason", "\0"), ("seed", 2**63), ("policy", "\ud800"), ("seed", -(2**64))]
)
def test_what_no_database_can_hold(client, database, made, name, value):
    answer = send(client, [made[1], replace(made[0], **{name: value})])
    assert answer.status_code == 422, answer.text
    assert stored(database) == []


LIES = [
    ("far too fast", lambda one: scaled(one, 1 / 20), "median of"),
    ("far too slow", lambda one: scaled(one, 20), "median of"),
    (
        "wrong where it was right",
        lambda one: replace(one, status=Status.INCORRECT, reason="made up"),
        "records are good",
    ),
    (
        "from the future",
        lambda one: replace(one, measured_at=datetime.now(UTC) + timedelta(days=1)),
        "still to come",
    ),
    ("of no implementation", lambda one: replace(one, implementation="mine"), "no implementation"),
    (
        "of another device by this name",
        lambda one: replace(one, device=replace(one.device, copy_bytes_per_s=1e15)),
        "copy_bytes_per_s",
    ),
]


@pytest.mark.parametrize(("lie", "word"), [case[1:] for case in LIES], ids=[case[0] for case in LIES])
def test_what_contradicts_is_set_aside_with_the_reason(client, database, made, lie, word):
    receipt(client, made)
    false = lie(made[0])
    answer = receipt(client, [false, scaled(made[1], 1.3)])
    assert answer["added"] == 1
    (aside,) = answer["quarantined"]
    assert aside["line"] == 1
    assert word in aside["detail"]
    assert len(stored(database)) == len(made) + 1
    (kept,) = client.get("/v1/quarantine").json()["items"]
    assert Record.from_json(json.dumps(kept["record"])) == false
    assert (kept["author"], kept["reason"]) == ("worker-7", aside["detail"])


def test_what_is_known_is_known_also_when_later_records_speak_against_it(client, database, made):
    failed = replace(made[0], status=Status.TIMEOUT, reason="busy", forward=None, forward_backward=None)
    assert receipt(client, [failed])["added"] == 1
    assert receipt(client, made)["quarantined"] == []
    again = receipt(client, [failed, *made])
    known = len(made) + 1
    assert again == {"received": known, "added": 0, "known": known, "quarantined": [], **ALL_COUNT}
    assert client.get("/v1/quarantine").json()["items"] == []
    assert len(stored(database)) == len(made) + 1


def test_a_gpu_is_not_faster_than_its_rate(client):
    first = Record.from_json(LINE)
    answer = receipt(client, [scaled(first, 1e-4), first])
    assert answer["added"] == 1
    (aside,) = answer["quarantined"]
    assert "times the device's rate" in aside["detail"]


def test_a_slower_machine_is_no_lie(client, made):
    receipt(client, made)
    assert receipt(client, [scaled(one, 2) for one in made])["quarantined"] == []


def test_other_regimes_are_stored_beside_and_contradict_nothing(client, database, made):
    assert receipt(client, made)["added"] == len(made)
    question = {"hyperparameters": {name: made[0].problem[name] for name in ("hidden", "batch")}}
    before = client.post("/v1/choices", json=question).json()
    compiled = [replace(scaled(record, 1e-2), regime="compiled") for record in made]
    assert receipt(client, compiled)["added"] == len(made)
    with Database.open(database) as opened, opened.read() as connection:
        snapshot_now = snapshot(connection)
    for _ in range(100):  # the service reads what is new beside the questions
        after = client.post("/v1/choices", json=question).json()
        if after["snapshot"] == snapshot_now:
            break
        time.sleep(0.1)
    assert after == {**before, "snapshot": snapshot_now}
    listed = client.get("/v1/measurements", params={"regime": "compiled"}).json()["items"]
    assert [Record.from_json(json.dumps(one["record"])) for one in listed] == compiled
    slower = receipt(client, [scaled(compiled[0], 1e3, driver="a third")])
    (aside,) = slower["quarantined"]
    assert "where the median of 1 record is" in aside["detail"]
    unknown = send(client, [compiled[0].to_json().replace('"compiled"', '"eager"')])
    assert unknown.status_code == 422
    assert "expected launched, graph, compiled" in unknown.json()["detail"]


def test_a_new_device_has_nothing_to_contradict(client, made):
    new = replace(Record.from_json(LINE).device, name="NVIDIA X1", host="", matmul_flops_per_s={})
    assert receipt(client, [replace(made[0], device=new)])["added"] == 1


def test_a_token_sends_few_kinds_of_devices_that_nobody_else_knows(client):
    """A thousand invented ones took 12 s to review, and each process minutes to warm up for."""
    found = receipt(client, [with_device(Record.from_json(LINE), name=f"NVIDIA Z{n}") for n in range(22)])
    assert found["added"] == 20
    assert [one["line"] for one in found["quarantined"]] == [21, 22]
    assert "beside 20 kinds of this token that nobody else knows" in found["quarantined"][0]["detail"]


def with_device(record, **changes):
    return replace(record, device=replace(record.device, **changes))


def test_a_problem_of_no_operator(client, made):
    from kernel_selector.kernels.contract import Problem

    odd = replace(made[0], problem=Problem("lstm", (("hidden", 64), ("mode", "training"))))
    (aside,) = receipt(client, [odd])["quarantined"]
    assert "no operator" in aside["detail"]


def test_unchanged_answers_are_not_sent_again(client, made):
    receipt(client, made)
    for path in ("/v1/measurements", "/v1/operators", "/v1/devices", "/v1/implementations", "/v1/models"):
        first = client.get(path)
        etag = first.headers["etag"]
        again = client.get(path, headers={"if-none-match": f'"other", W/{etag}'})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        assert client.get(path, headers={"if-none-match": '"other"'}).content == first.content
    assert client.get("/v1/operators", headers={"if-none-match": "*"}).status_code == 304


def test_implementations_have_the_versions_that_count(client):
    listed = client.get("/v1/implementations").json()
    assert {item["operator"] for item in listed} == registry.operators().keys()
    versions = {item["name"]: item["version"] for item in listed if item["operator"] == "lstm"}
    assert versions == {name: item.version for name, item in registry.implementations("lstm").items()}


def test_a_time_is_held_against_all_that_were_sent_and_not_the_last_of_them(
    client, database, made, monkeypatch
):
    monkeypatch.setattr(tokens, "LOOK_S", 0.0)
    honest = made[0]
    receipt(client, [honest])
    secret = tokens.create_token(database, "mallory", scopes=["measure"])
    other = {"authorization": f"Bearer {secret}"}
    first = send(client, [scaled(honest, 1 / 7.9, driver="own")], **other).json()
    assert first["added"] == 1  # as machines of one kind may differ
    (aside,) = send(client, [scaled(honest, 1 / 62, driver="own")], **other).json()["quarantined"]
    assert "where the median of 2 records of 2 authors is" in aside["detail"]
    assert receipt(client, [replace(honest, seed=honest.seed + 1)])["quarantined"] == []


@pytest.mark.parametrize("lie", ["time", "failure"])
def test_what_came_a_moment_before_speaks_against_a_lie(client, database, made, monkeypatch, lie):
    monkeypatch.setattr(tokens, "LOOK_S", 0.0)
    monkeypatch.setattr("selector.selection.selector.CHECK_S", 60.0)  # what is loaded stays as it is
    client.app.state.selector.reload()
    other = tokens.create_token(database, "worker-8", scopes=["measure"])
    sent = send(client, made[:1], authorization=f"Bearer {other}").json()
    assert (sent["added"], sent["waiting"]) == (1, 0)
    false = scaled(made[0], 1 / 60)
    if lie == "failure":
        false = replace(
            made[0], status=Status.CRASHED, reason="it did", forward=None, forward_backward=None, memory=None
        )
    answer = receipt(client, [false])
    assert (answer["added"], len(answer["quarantined"])) == (0, 1)


def test_what_comes_between_a_review_and_the_storing_speaks_against_a_lie(
    client, database, made, monkeypatch
):
    reviewed, false = Review.objection, scaled(made[0], 1 / 60)

    def late(review, record):
        found = reviewed(review, record)
        if record == false and not stored(database):
            with Database.open(database) as opened, opened.write() as connection:
                records.add(connection, made[:1])
        return found

    monkeypatch.setattr(Review, "objection", late)
    answer = receipt(client, [false])
    assert (answer["added"], len(answer["quarantined"])) == (0, 1)


def test_what_was_measured_after_its_receipt_is_as_old_as_that(client, database, made):
    soon = datetime.now(UTC) + timedelta(minutes=4)  # as far as clocks may differ
    receipt(client, [replace(scaled(made[0], 2, driver=made[0].environment.driver), measured_at=soon)])
    again = replace(made[0], measured_at=datetime.now(UTC), seed=made[0].seed + 1)
    receipt(client, [again])
    operator, device = made[0].problem.operator, made[0].device.key
    with Database.open(database) as opened, opened.read() as connection:
        (newest,) = records.newest(connection, operator=operator, device_key=device)
    assert newest.total.undisturbed_ms == again.total.undisturbed_ms
