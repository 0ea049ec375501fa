"""A poisoned token found, retracted and released, over HTTP and by commands; the journal says by whom."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from kernel_selector.db import Database, StoredModel, contested, corrections, models, submissions
from kernel_selector.service import tokens
from kernel_selector.service.cli import main
from selector import Selector
from tests.service.test_rest_measurements import (  # noqa: F401 - fixtures
    client,
    database,
    made,
    receipt,
    scaled,
    send,
)

QUESTION = {"hyperparameters": {"hidden": 256, "batch": 32}}
WHY = {"reason": "tried"}


@pytest.fixture(autouse=True)
def _looked_at_each_time(monkeypatch):
    monkeypatch.setattr("selector.selection.selector.BACK_OFF", 0)


@pytest.fixture
def mallory(database, monkeypatch):  # noqa: F811
    """Headers of another measuring token."""
    monkeypatch.setattr(tokens, "LOOK_S", 0.0)
    secret = tokens.create_token(database, "mallory", scopes=["measure"])
    return {"authorization": f"Bearer {secret}"}


def choice(client):  # noqa: F811
    answer = client.post("/v1/choices", json=QUESTION).json()
    return answer["implementation"], answer["time_ms"], answer["snapshot"]


def entries(client, **given):  # noqa: F811
    answer = client.get("/v1/audit", params=given)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


def post(client, verb, **body):  # noqa: F811
    answer = client.post(f"/v1/measurements:{verb}", json={**WHY, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_what_one_token_sent_is_retracted_and_comes_back(client, made, mallory, run):  # noqa: F811
    receipt(client, made)
    before = choice(client)
    slowest = [one for one in made if one.problem.hidden == 256][-1]
    sent = send(client, [scaled(slowest, 1 / 7.9, driver=slowest.environment.driver)], **mallory).json()
    assert (sent["added"], sent["waiting"]) == (1, 1)
    after = choice(client)
    (held,) = run("measurements", "waiting", "--operator", "lstm")["waiting"]
    assert (held["author"], held["implementation"]) == ("mallory", slowest.implementation)
    assert after[:2] == before[:2]
    (batch,) = {
        one["batch"]
        for one in client.get("/v1/measurements", params={"limit": 1000}).json()["items"]
        if one["author"] == "mallory"
    }

    found = post(client, "retract", author="mallory")
    nothing = {"waiting": 0, "train_again": []}
    assert found == {"entry": found["entry"], "measurements": 1, "operators": ["lstm"], **nothing}
    assert choice(client) == before
    undone = post(client, "undo", entry=found["entry"])
    assert (undone["measurements"], undone["waiting"]) == (1, 1)
    assert choice(client) == after
    assert post(client, "retract", batch=batch, since="2026-01-01T00:00:00Z")["measurements"] == 1
    assert choice(client) == before

    told = [(one["author"], one["through"], one["action"], one["subject"]) for one in entries(client)]
    assert told[-5:] == [
        ("worker-7", "service", "measurements.upload", f"batch {batch - 1}"),
        ("mallory", "service", "measurements.upload", f"batch {batch}"),
        ("worker-7", "service", "measurements.retract", "author mallory"),
        ("worker-7", "service", "measurements.undo", f"entry {found['entry']}"),
        ("worker-7", "service", "measurements.retract", told[-1][3]),
    ]
    assert entries(client, author="mallory")[0]["details"] == {
        "received": 1,
        "added": 1,
        "known": 0,
        "waiting": 1,
        "quarantined": 0,
    }
    first = client.get("/v1/audit", params={"limit": 3}).json()
    assert first["items"] + entries(client, cursor=first["next"]) == entries(client)
    assert [one["id"] for one in entries(client, action="measurements.undo")] == [undone["entry"]]
    assert entries(client, since=(datetime.now(UTC) + timedelta(days=1)).isoformat()) == []


def test_what_was_set_aside_is_released_and_set_aside_again(client, made):  # noqa: F811
    receipt(client, made)
    receipt(client, [scaled(made[0], 9), scaled(made[1], 20)])
    before = choice(client)
    first, second = client.get("/v1/quarantine").json()["items"]
    found = post(client, "release", ids=[first["id"]])
    assert (found["measurements"], found["kept"]) == (1, [])
    assert client.get("/v1/quarantine").json()["items"] == [second]
    page = client.get("/v1/measurements", params={"limit": 1000}).json()["items"]
    assert (page[-1]["record"], page[-1]["author"]) == (first["record"], "worker-7")
    assert choice(client)[2] != before[2]
    post(client, "undo", entry=found["entry"])
    assert client.get("/v1/quarantine").json()["items"] == [first, second]
    assert choice(client) == before
    assert receipt(client, [scaled(made[0], 9)])["known"] == 1  # it is there, and does not count
    assert choice(client) == before


def test_what_was_set_aside_is_listed_by_author_batch_and_time(client, made):  # noqa: F811
    receipt(client, made)
    receipt(client, [scaled(made[0], 9)])
    receipt(client, [scaled(made[0], 11)])
    first, second = client.get("/v1/quarantine").json()["items"]

    def ids(**chosen):
        return [one["id"] for one in client.get("/v1/quarantine", params=chosen).json()["items"]]

    assert ids(batch=second["batch"]) == ids(since=second["received_at"]) == [second["id"]]
    assert ids(author=first["author"]) == [first["id"], second["id"]]
    assert ids(author=first["author"], since=second["received_at"], limit=1) == [second["id"]]
    assert ids(author="nobody") == ids(batch=1) == []
    for wrong in (
        {"batch": 0},
        {"batch": "x"},
        {"since": "yesterday"},
        {"since": "9999-12-31T23:59:59-14:00"},
    ):
        assert client.get("/v1/quarantine", params=wrong).status_code == 422


def test_what_no_operator_makes_stays_aside(client, made):  # noqa: F811
    odd = json.loads(made[0].to_json())
    odd["problem"]["bias"] = 1
    receipt(client, [json.dumps(odd), *made])
    (kept,) = client.get("/v1/quarantine").json()["items"]
    answer = client.post("/v1/measurements:release", json={"ids": [kept["id"]], **WHY})
    assert answer.status_code == 422
    assert "no operator here makes" in answer.json()["detail"]


BAD = {
    "nothing chosen": ("retract", WHY, "Nothing is chosen"),
    "nobody": ("retract", {"author": "nobody", **WHY}, "no measurement of author nobody"),
    "no reason": ("retract", {"author": "worker-7"}, "reason"),
    "an empty reason": ("retract", {"author": "worker-7", "reason": "  "}, "expected why"),
    "a time without a zone": ("retract", {"since": "2026-01-01T00:00:00", **WHY}, "timezone"),
    "a time before all": (
        "retract",
        {"since": "0001-01-01T00:00:00+14:00", **WHY},
        "no date of the years 1 to 9999 in UTC",
    ),
    "nothing since": (
        "retract",
        {"since": "2999-01-01T00:00:00Z", **WHY},
        "There is no measurement since 2999-01-01T00:00:00+00:00: `selector audit",
    ),
    "nothing of somebody since": (
        "retract",
        {"author": "worker-7", "batch": 1, "since": "2999-01-01T00:00:00Z", **WHY},
        "no measurement of author worker-7, batch 1 since 2999-01-01T00:00:00+00:00: ",
    ),
    "nothing aside": ("release", {"ids": [7], **WHY}, "No record of ids [7] can be released"),
    "nothing aside since": (
        "release",
        {"since": "2999-01-01T00:00:00Z", **WHY},
        "No record since 2999-01-01T00:00:00+00:00 can be released",
    ),
    "no entry": ("undo", {"entry": 999, **WHY}, "is not there"),
    "an upload": ("undo", {"entry": 2, **WHY}, "is a measurements.upload"),
}


@pytest.mark.parametrize(("verb", "body", "words"), BAD.values(), ids=BAD)
def test_what_cannot_be_corrected(client, made, verb, body, words):  # noqa: F811
    receipt(client, made[:1])
    before = entries(client)
    answer = client.post(f"/v1/measurements:{verb}", json=body)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]
    assert entries(client) == before


def test_only_admin_corrects_and_reads_the_journal(client, mallory):  # noqa: F811
    for verb in ("retract", "release", "undo"):
        assert client.post(f"/v1/measurements:{verb}", json=WHY, headers=mallory).status_code == 403
        del_auth = {"authorization": ""}
        assert client.post(f"/v1/measurements:{verb}", json=WHY, headers=del_auth).status_code == 401
    assert client.get("/v1/audit", headers=mallory).status_code == 403
    assert client.get("/v1/audit", params={"action": "none"}).status_code == 422


@pytest.fixture
def run(database, capsys):  # noqa: F811
    """Runs a command; returns its document, or with `code` its words."""

    def command(*words, code=0):
        assert main([*words, "--database", str(database), *(["--json"] if code == 0 else [])]) == code
        out, err = capsys.readouterr()
        return json.loads(out) if code == 0 else err

    return command


def test_the_same_by_commands(client, made, mallory, run, database, capsys):  # noqa: F811
    receipt(client, made)
    before = choice(client)
    send(client, [scaled(made[0], 1.5), scaled(made[0], 30)], **mallory)
    (aside,) = run("measurements", "quarantined")["quarantined"]
    found = run("measurements", "retract", "--author", "mallory", "--reason", "a stolen token")
    assert found["measurements"] == 1
    assert choice(client) == before
    again = ["measurements", "retract", "--author", "mallory", "--reason", "again", "--database"]
    assert main([*again, str(database)]) == 0
    assert "0 measurements of lstm retracted. The chosen ones are as before" in capsys.readouterr().out
    released = run("measurements", "release", "--record", str(aside["id"]), "--reason", "it was right")
    assert run("measurements", "quarantined")["quarantined"] == []
    run("measurements", "undo", str(released["entry"]), "--reason", "it was not")
    assert choice(client) == before
    assert "undone before" in run("measurements", "undo", str(released["entry"]), "--reason", "x", code=2)
    assert "--since" in run("measurements", "retract", "--since", "noon", "--reason", "x", code=2)
    told = run("audit", "--last", "4")["entries"]
    assert [one["action"].partition(".")[2] for one in told] == ["retract", "retract", "release", "undo"]
    assert [one["details"]["measurements"] for one in told] == [1, 0, 1, 1]
    assert {one["through"] for one in told} == {"command"}
    assert [one["subject"] for one in run("audit", "--action", "token.create")["entries"]] == [
        "worker-7",
        "mallory",
    ]
    assert "expected one of token.create" in run("audit", "--action", "x", code=2)
    assert main(["audit", "--database", str(database)]) == 0
    assert "a stolen token" in capsys.readouterr().out


def test_what_one_has_measured_alone_speaks_against_him_eightfold_and_else_not(client, made):  # noqa: F811
    receipt(client, made)
    slowest = [one for one in made if one.problem.hidden == 256][-1]
    answer = receipt(client, [scaled(slowest, 1 / 7.9), scaled(slowest, 1 / 9)])
    assert (answer["added"], answer["waiting"], len(answer["quarantined"])) == (1, 0, 1)


def test_what_is_chosen_and_not_set_aside_is_named(made, client, database, capsys):  # noqa: F811
    receipt(client, made[:1])
    words = ["measurements", "quarantined", "--database", str(database)]
    for options, expected in (
        ([], "Nothing is set aside.\n"),
        (["--since", "2026-11-27T10:00"], "Nothing since 2026-11-27T10:00:00+00:00 is set aside.\n"),
        (["--author", "worker-7", "--batch", "2"], "Nothing of author worker-7, batch 2 is set aside.\n"),
    ):
        assert main([*words, *options]) == 0
        assert capsys.readouterr().out == expected


def test_a_record_that_is_set_aside_is_an_object_in_the_commands_document(client, made, run):  # noqa: F811
    receipt(client, made)
    aside = scaled(made[0], 30)
    receipt(client, [aside])
    (found,) = run("measurements", "quarantined")["quarantined"]
    assert found["record"] == json.loads(aside.to_json())
    assert found == client.get("/v1/quarantine").json()["items"][0]


@pytest.mark.parametrize("line", ["{", "[1]", '{"schema": NaN}', "[" * 100_000], ids=range(4))
def test_a_record_that_is_no_object_any_more_stays_text_and_says_so(client, made, run, database, line):  # noqa: F811
    receipt(client, made)
    with Database.open(database) as opened, opened.write() as connection:
        submissions.quarantine(connection, submission=1, lines=[(line, "of another version")])
    (found,) = run("measurements", "quarantined")["quarantined"]
    assert found["record"] == line
    assert found["unreadable"].startswith("the record is no JSON object, and stays text: ")
    assert client.get("/v1/quarantine").json()["items"] == [found]


def test_what_no_database_can_hold_stays_aside_and_the_rest_is_released(client, made):  # noqa: F811
    receipt(client, made)
    memory = replace(made[0].memory, peak_bytes=2**70)
    receipt(client, [scaled(made[0], 30), replace(made[1], memory=memory)])
    answer = post(client, "release", author="worker-7")
    (kept,) = answer["kept"]
    assert "peak_bytes=1180591620717411303424: expected an integer of at most 64 bits" in kept["reason"]
    assert answer["measurements"] == 1


def test_cost_models_that_have_learned_from_it_are_named(client, made, run, database):  # noqa: F811
    receipt(client, made)
    stored = StoredModel(
        operator="lstm",
        version="1a2b",
        schema=1,
        manifest={},
        evaluation={},
        arrays=b"",
        created_at=datetime(2025, 1, 1, tzinfo=UTC),
    )
    words = ["measurements", "retract", "--author", "worker-7", "--reason", "tried"]
    for year, expected in ((2025, []), (2099, ["lstm"])):
        with Database.open(database) as opened, opened.write() as connection:
            models.add(connection, model=replace(stored, created_at=datetime(year, 1, 1, tzinfo=UTC)))
        assert run(*words)["train_again"] == expected


@pytest.mark.parametrize("verb", ["retract", "undo", "release"])
def test_a_correction_reads_of_what_waits_its_own_problems_alone(client, made, mallory, monkeypatch, verb):  # noqa: F811
    receipt(client, [one for one in made if one.problem.hidden == 256])
    receipt(client, others := [one for one in made if one.problem.hidden == 64])
    factor = 30 if verb == "release" else 1.01
    send(client, [scaled(others[0], factor, driver="of mallory")], **mallory)
    if verb == "undo":
        body = {"entry": post(client, "retract", author="mallory")["entry"]}
    else:
        body = {"author": "mallory"}
    asked = []
    claims = contested.claims

    def noted(connection, *, operator, device_key=None, problem_keys=None, **more):
        asked.append((operator, device_key, problem_keys))
        return claims(connection, operator=operator, device_key=device_key, problem_keys=problem_keys, **more)

    monkeypatch.setattr(contested, "claims", noted)
    monkeypatch.setattr(Selector, "reload", lambda _: None)  # choices read what they need afterwards
    assert post(client, verb, **body)["measurements"] == 1
    assert asked == [("lstm", others[0].device.key, [others[0].problem.key])]


@pytest.mark.parametrize("verb", ["retract", "undo"])
def test_a_correction_counts_once_what_it_changes(client, made, monkeypatch, verb):  # noqa: F811
    receipt(client, made)
    body = (
        {"author": "worker-7"} if verb == "retract" else {"entry": post(client, "retract", batch=1)["entry"]}
    )
    counted = []
    changed = corrections._changed

    def count(*given):
        counted.append(changed(*given))
        return counted[-1]

    monkeypatch.setattr(corrections, "_changed", count)
    answer = post(client, verb, **body)
    assert counted == [answer["measurements"]] == [len(made)]
    assert entries(client)[-1]["details"]["measurements"] == len(made)
