"""Who sends first what others measured keeps none of it from counting, and takes none of it along."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import text
from starlette.testclient import TestClient

from kernel_selector.db import Database, DatabaseLocked, audit, integrity
from kernel_selector.service import tokens
from kernel_selector.service.app import create_app
from kernel_selector.service.cli import main
from kernel_selector.service.ingest import corrections, intake
from kernel_selector.service.ingest.review import MOST_RATIO
from kernel_selector.service.logs import LOGGER
from selector import Selector
from selector.selection import confirmation
from tests.service.test_rest_measurements import made, scaled, send  # noqa: F401 - a fixture

QUESTION = {"hyperparameters": {"hidden": 256, "batch": 32}}
TRUSTED = {"ann": True, "bob": True, "relay": False, "eve": False}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database(request, tmp_path):
    """A place for a database with tokens, of which two are not trusted."""
    url = str(tmp_path / "records.sqlite")
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
    Database.open(url, create=True).close()
    return url


@pytest.fixture
def service(database, made, monkeypatch):  # noqa: F811
    """A client on the loopback interface, with a function that sends records by the name of a token."""
    monkeypatch.setattr("selector.selection.selector.CHECK_S", 0.0)
    monkeypatch.setattr("selector.selection.selector.BACK_OFF", 0)
    monkeypatch.setattr("selector.selection.selector.PATIENCE_S", 60.0)  # for a server on a busy machine
    monkeypatch.setattr("selector.selection.devices._probed", lambda _: made[0].device)
    scopes = ["measure", "read", "admin"]
    secrets = {
        name: tokens.create_token(database, name, scopes=scopes, trusted=trusted)
        for name, trusted in TRUSTED.items()
    }
    selector = Selector(database)
    with TestClient(create_app(selector), base_url="http://127.0.0.1") as client:

        def by(name, found):
            answer = send(client, found, authorization=f"Bearer {secrets[name]}")
            assert answer.status_code == 200, answer.text
            return answer.json()

        client.headers["authorization"] = f"Bearer {secrets['ann']}"
        yield client, by
    selector.close()


def choice(client):
    answer = client.post("/v1/choices", json=QUESTION).json()
    return answer["source"], answer["implementation"], answer["time_ms"]


def correct(client, verb, **body):
    answer = client.post(f"/v1/measurements:{verb}", json={"reason": "tried", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def known(count, *, waiting=0, retracted=0):
    return {
        "received": count,
        "added": 0,
        "known": count,
        "quarantined": [],
        "waiting": 0,
        "known_waiting": waiting,
        "known_retracted": retracted,
    }


def authors(client):
    items = client.get("/v1/measurements", params={"limit": 1000}).json()["items"]
    return {one["author"] for one in items}


def faults(database):
    with Database.open(database) as opened, opened.read() as connection:
        return list(integrity.faults(connection))


def test_what_was_relayed_first_counts_once_a_trusted_token_sends_it(service, database, made):  # noqa: F811
    client, by = service
    count = len(made)
    nothing = choice(client)
    assert nothing[0] != "exact"
    assert by("relay", made)["added"] == count
    assert choice(client) == nothing
    assert by("relay", made) == known(count, waiting=count)
    assert by("ann", made) == known(count)
    honest = choice(client)
    assert honest[0] == "exact"
    assert authors(client) == {"ann"}

    found = correct(client, "retract", author="relay")
    assert found["measurements"] == 0  # all of it counts on
    assert choice(client) == honest
    of_ann = correct(client, "retract", author="ann")
    assert of_ann["measurements"] == count
    assert choice(client) == nothing
    assert by("relay", made) == by("ann", made) == known(count, retracted=count)
    assert correct(client, "undo", entry=found["entry"])["measurements"] == count
    assert choice(client) == nothing  # it waits again
    assert authors(client) == {"relay"}
    assert correct(client, "undo", entry=of_ann["entry"])["measurements"] == 0
    assert choice(client) == honest
    told = client.get("/v1/audit", params={"limit": 1000}).json()["items"]
    assert [one["details"]["measurements"] for one in told if one["subject"] == "author relay"] == [0]
    assert faults(database) == []


def test_a_copy_is_no_second_measurement(service, made):  # noqa: F811
    client, by = service
    count = len(made)
    nothing = choice(client)
    by("relay", made)
    assert by("eve", made) == known(count, waiting=count)
    assert choice(client) == nothing
    own = [scaled(one, 1.1, driver=one.environment.driver) for one in made]
    assert by("eve", own)["added"] == count
    assert choice(client)[0] == "exact"  # two authors have measured it
    assert by("relay", made) == known(count)


def test_a_flip_that_waits_is_not_confirmed_by_its_copy(service, database, made):  # noqa: F811
    client, by = service
    by("ann", made)
    before = choice(client)
    slowest = [one for one in made if one.problem.hidden == 256][-1]
    flip = scaled(slowest, 1 / 7.9, driver=slowest.environment.driver)
    by("bob", [flip])
    assert by("ann", [flip]) == known(1, waiting=1)
    assert by("eve", [flip]) == known(1, waiting=1)
    assert choice(client) == before
    by("bob", [scaled(slowest, 1 / 7.8, driver=slowest.environment.driver)])
    assert choice(client) != before
    assert faults(database) == []


def test_a_copy_is_reviewed_as_what_its_sender_measured(service, made):  # noqa: F811
    client, by = service
    false = scaled(made[0], 1 / 20)
    by("relay", [false])  # the first of its kind contradicts nothing, and waits
    by("ann", made)
    honest = choice(client)
    answer = by("bob", [false])
    assert (answer["added"], answer["known"], len(answer["quarantined"])) == (0, 0, 1)
    again = by("bob", [false, made[1]])
    assert (again["known"], again["known_waiting"], len(again["quarantined"])) == (1, 0, 1)
    assert by("relay", [false]) == known(1, waiting=1)
    assert choice(client) == honest
    assert [one["author"] for one in client.get("/v1/quarantine").json()["items"]] == ["bob"]


def test_the_same_file_a_hundred_times_is_stored_once_for_each_author(service, database, made):  # noqa: F811
    _, by = service
    for _ in range(50):
        for name in ("relay", "eve"):
            by(name, made[:3])
    with Database.open(database) as opened, opened.read() as connection:
        for table, expected in {"measurement": 3, "authorship": 6, "quarantined": 0}.items():
            assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() == expected, table
        last = list(audit.page(connection, limit=1, latest=True))
    assert last[0]["details"] == {"received": 3, "added": 0, "known": 3, "waiting": 0, "quarantined": 0}


def test_a_line_that_was_set_aside_first_is_released_as_its_senders(service, database, made):  # noqa: F811
    client, by = service
    by("ann", made)
    odd = scaled(made[0], 9)
    for name in ("relay", "bob", "bob"):
        assert len(by(name, [odd])["quarantined"]) == 1
    aside = client.get("/v1/quarantine").json()["items"]
    assert [one["author"] for one in aside] == ["relay", "bob"]
    correct(client, "release", author="bob")
    assert "bob" in authors(client)
    assert [one["author"] for one in client.get("/v1/quarantine").json()["items"]] == ["relay"]
    assert faults(database) == []


@pytest.mark.parametrize(
    ("factor", "aside"),
    [(MOST_RATIO, False), (1 / MOST_RATIO, False), (MOST_RATIO * 1.001, True), (0.999 / MOST_RATIO, True)],
)
def test_a_time_exactly_eight_times_off_is_not_set_aside_and_waits(service, made, factor, aside):  # noqa: F811
    client, by = service
    by("ann", made)
    before = choice(client)
    at_first = [one for one in made if one.problem.hidden == 256]
    chosen = at_first[0] if factor > 1 else at_first[-1]
    answer = by("bob", [scaled(chosen, factor, driver=chosen.environment.driver)])
    assert (answer["added"], len(answer["quarantined"])) == ((0, 1) if aside else (1, 0))
    assert choice(client) == before
    if not aside:
        again = by("bob", [scaled(chosen, factor, driver=chosen.environment.driver)])
        assert again == known(1, waiting=1)


def test_an_upload_says_how_much_of_it_waits(service, made):  # noqa: F811
    client, by = service
    of_ann, rest = made[:2], made[2:]
    assert by("ann", of_ann)["waiting"] == 0
    answer = by("relay", made)
    assert (answer["added"], answer["waiting"]) == (len(rest), len(rest))
    assert (answer["known"], answer["known_waiting"]) == (2, 0)
    (told,) = client.get("/v1/audit", params={"author": "relay"}).json()["items"]
    assert told["details"]["waiting"] == len(rest)
    own = [scaled(one, 1.1, driver=one.environment.driver) for one in rest]
    assert by("eve", own)["waiting"] == 0  # two authors agree


def test_pages_mark_what_waits(service, made):  # noqa: F811
    client, by = service
    by("ann", made[:2])
    by("relay", made[2:])
    found, cursor = [], {}
    while cursor is not None:
        answer = client.get("/v1/measurements", params={"limit": 3, **cursor}).json()
        found += [(one["author"], one["waiting"]) for one in answer["items"]]
        cursor = answer["next"] and {"cursor": answer["next"]}
    assert found == [("ann", False)] * 2 + [("relay", True)] * (len(made) - 2)
    by("ann", made)
    items = client.get("/v1/measurements", params={"limit": 1000}).json()["items"]
    assert {one["waiting"] for one in items} == {False}


def test_a_correction_says_how_much_of_it_waits(service, database, made, capsys):  # noqa: F811
    client, by = service
    by("ann", made)
    odd = scaled([one for one in made if one.problem.hidden == 256][-1], 9)  # flips nothing
    for name in ("relay", "bob"):
        assert len(by(name, [odd])["quarantined"]) == 1
    found = correct(client, "release", author="relay")
    assert (found["measurements"], found["waiting"]) == (1, 1)
    assert correct(client, "undo", entry=found["entry"])["waiting"] == 0  # it is aside, and waits for nobody
    again = ["measurements", "release", "--author", "relay", "--reason", "tried", "--database", database]
    assert main(again) == 0
    assert "1 of them cannot count before somebody agrees" in capsys.readouterr().out
    assert correct(client, "release", author="bob")["waiting"] == 0  # it counts through bob
    kept = correct(client, "retract", author="bob")
    assert (kept["measurements"], kept["waiting"]) == (0, 1)  # relay's is left of it
    assert correct(client, "undo", entry=kept["entry"])["waiting"] == 0


def test_retracting_twice_says_that_nothing_changed(service, database, made):  # noqa: F811
    client, by = service
    by("ann", made)
    first = correct(client, "retract", author="ann")
    second = correct(client, "retract", author="ann")
    assert (first["measurements"], second["measurements"]) == (len(made), 0)
    mandate = corrections.Mandate(author="me", through=audit.COMMAND, reason="tried")
    assert corrections.undo(database, first["entry"], mandate)["measurements"] == 0
    assert corrections.undo(database, second["entry"], mandate)["measurements"] == len(made)


def test_what_is_stored_is_answered_where_it_cannot_be_read_again(service, made, monkeypatch, caplog):  # noqa: F811
    _, by = service
    by("relay", made)

    def fail(*_):
        raise DatabaseLocked("busy")

    monkeypatch.setattr(intake, "_not_counting", fail)
    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        assert by("relay", made) == known(len(made))
    assert "not told apart: 'busy'" in caplog.text


def test_what_waits_of_many_problems_is_asked_for_in_parts(service, made, monkeypatch):  # noqa: F811
    _, by = service
    monkeypatch.setattr("kernel_selector.db.bulk.LOOKUP", 1)
    asked, waiting = [], confirmation.waiting

    def noted(connection, **given):
        asked.append(given["problem_keys"])
        return waiting(connection, **given)

    monkeypatch.setattr(confirmation, "waiting", noted)
    keys = {one.problem.key for one in made}
    assert len(keys) > 1
    for expected in ({"waiting": len(made)}, {"waiting": 0, "known_waiting": len(made)}):
        assert by("relay", made).items() >= expected.items()
        assert {tuple(one) for one in asked if one is not None} == {(key,) for key in keys}
        asked.clear()
