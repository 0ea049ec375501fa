"""Where the database lies is told to those with the scope `admin`, and to the log: not to whoever asks."""

import sqlite3
from contextlib import closing

import pytest
from starlette.testclient import TestClient

from kernel_selector.db import Database, audit, errors
from kernel_selector.db.engine.backup import back_up, restore
from kernel_selector.service import problem_details as problems
from kernel_selector.service import tokens
from kernel_selector.service.app import create_app
from kernel_selector.service.settings import Settings
from selector import Selector

FROM_AFAR = "http://198.51.100.7"


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(tokens, "LOOK_S", 0.0)
    monkeypatch.setattr("selector.selection.selector.CHECK_S", 0.0)
    monkeypatch.setattr("selector.selection.selector.BACK_OFF", 0)


@pytest.fixture
def database(empty_database):
    return empty_database


@pytest.fixture
def service(database):
    selector = Selector(database)
    yield TestClient(create_app(selector, settings=Settings()), base_url=FROM_AFAR)
    selector.close()


def headers(secret):
    return {"authorization": f"Bearer {secret}"}


@pytest.mark.parametrize("broken", [False, True])
def test_not_ready_without_the_place(service, database, caplog, monkeypatch, broken):
    reader = tokens.create_token(database, "reader")
    admin = tokens.create_token(database, "admin", scopes=["admin"])
    assert service.get("/v1/operators", headers=headers(reader)).status_code == 200  # tokens are read

    def damaged(_):
        raise errors.DatabaseCorrupt(f"The database {database} is damaged.")

    if broken:
        monkeypatch.setattr(Selector, "_changed", damaged)
        monkeypatch.setattr(Selector, "_load", damaged)
    for given in ({}, headers(reader), headers(tokens.new_secret()), {"authorization": "Basic eA=="}):
        caplog.clear()
        answer = service.get("/readyz", headers=given)
        assert answer.status_code == 503
        assert str(database.parent) not in answer.text
        assert ("damaged" if broken else "no measurements") in answer.json()["detail"]
        assert not broken or str(database) in caplog.text
    whole = service.get("/readyz", headers=headers(admin)).json()["detail"]
    assert not broken or str(database) in whole


def test_who_is_not_known_is_not_told_the_place(service, database, caplog):
    database.write_bytes(b"\xff" * 50_000)
    for path in ("/v1/operators", "/readyz"):
        answer = service.get(path, headers=headers(tokens.new_secret()))
        assert answer.status_code == 503
        assert str(database.parent) not in answer.text
        assert str(database) in caplog.text
        caplog.clear()


def test_every_error_of_the_database_has_a_reason():
    kinds = {kind.__name__ for kind in errors.DatabaseError.__subclasses__()}
    about_requests = {"TaskLost", "IdempotencyKeyReused", "InvalidModel"}
    assert set(problems.REASONS) == kinds - about_requests
    assert problems.reason("OSError") == problems.CANNOT


def warned(caplog):
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    caplog.clear()
    return found


@pytest.mark.parametrize("since", [False, True])
def test_a_restoration_under_a_running_service_is_in_its_log_once(service, database, tmp_path, caplog, since):
    reader, copy = tokens.create_token(database, "reader"), tmp_path / "copy.sqlite"

    def ask():
        return service.get("/v1/operators", headers=headers(reader)).status_code

    back_up(database, copy)
    if since:
        tokens.create_token(database, "gone")
    assert ask() == 200
    assert not warned(caplog)
    restore(copy, database, author="ops")
    assert (ask(), ask()) == (200, 200)
    (line,) = warned(caplog)
    assert f"{database} was restored from 'copy.sqlite' by 'ops'" in line
    assert "selector audit --action database.restore" in line
    tokens.create_token(database, "another")
    assert ask() == 200
    assert not warned(caplog)


def test_a_database_that_was_put_back_by_other_means_is_in_the_log_once(service, database, tmp_path, caplog):
    reader, copy = tokens.create_token(database, "reader"), tmp_path / "copy.sqlite"
    back_up(database, copy)
    tokens.create_token(database, "gone")
    assert service.get("/v1/operators", headers=headers(reader)).status_code == 200
    with closing(sqlite3.connect(copy)) as source, closing(sqlite3.connect(database)) as target:
        source.backup(target)
    for _ in range(2):
        assert service.get("/v1/operators", headers=headers(reader)).status_code == 200
    (line,) = warned(caplog)
    assert f"{database} has become another one" in line
    with Database.open(database) as opened, opened.read() as connection:
        assert not list(audit.page(connection, limit=1, action=audit.Action.RESTORE))
