"""PostgreSQL that falls silent under a service: stopped, not refused. A relay before it stands for that."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.engine import make_url
from starlette.testclient import TestClient

from kernel_selector.db import Database, DatabaseUnreachable, records
from kernel_selector.db.engine import silence
from kernel_selector.service import tokens
from kernel_selector.service.app import create_app
from kernel_selector.service.openapi.example_record import LINE
from kernel_selector.service.settings import Settings
from selector import Selector
from selector.selection import selector as engine_module
from tests.service.conftest import measured_records
from tests.service.relay import Relay

pytestmark = pytest.mark.postgres
KNOWN = {"hyperparameters": {"hidden": 256, "batch": 32}}
CONNECT_S = 2  # the least that PostgreSQL's own library knows
AT_ONCE_S = 1.5  # on a busy machine: 50 ms that one of them waits, and milliseconds


@pytest.fixture
def relay(postgres_server):
    url = make_url(postgres_server)
    opened = Relay(url.host, url.port or 5432)
    yield opened
    opened.close()


@pytest.fixture
def url(relay, postgres_url, monkeypatch):
    """A filled database behind the relay, with waits that suit a test."""
    monkeypatch.setattr(silence, "SILENCE_S", 0.3)
    monkeypatch.setattr(silence, "REST_S", 1.0)
    monkeypatch.setattr(engine_module, "CHECK_S", 0.1)
    monkeypatch.setattr(engine_module, "BACK_OFF", 0)
    with Database.open(postgres_url, create=True) as database, database.write() as connection:
        records.add(connection, list(measured_records()))
    relayed = make_url(postgres_url).set(host="127.0.0.1", port=relay.port)
    query = {"connect_timeout": str(CONNECT_S), "gssencmode": "disable"}
    return relayed.update_query_dict(query).render_as_string(hide_password=False)


def timed(call, *given, **more):
    started = time.monotonic()
    return call(*given, **more), time.monotonic() - started


def test_a_service_answers_from_what_it_loaded_and_says_so(relay, url):
    read = tokens.create_token(url, "reader", scopes=["read"])
    write = tokens.create_token(url, "worker", scopes=["measure"])
    selector = Selector(url)
    with TestClient(create_app(selector, settings=Settings()), base_url="http://127.0.0.1") as client:
        client.headers["authorization"] = f"Bearer {read}"
        assert client.post("/v1/choices", json=KNOWN).json()["source"] == "exact"
        assert client.get("/metrics").status_code == 200
        relay.hush()
        time.sleep(0.2)
        for _ in range(3):
            for batch in (32, 33):
                question = {"hyperparameters": {"hidden": 256, "batch": batch}}
                answer, seconds = timed(client.post, "/v1/choices", json=question)
                assert (answer.status_code, seconds < AT_ONCE_S) == (200, True)
            for path in ("/readyz", "/metrics", "/v1/operators", "/v1/devices"):
                answer, seconds = timed(client.get, path)
                assert (path, answer.status_code, seconds < AT_ONCE_S) == (path, 200, True)
        deadline = time.monotonic() + 20
        while not (stale := client.post("/v1/choices", json=KNOWN).json())["caveats"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert stale["source"] == "exact"
        assert any("cannot be read now" in caveat for caveat in stale["caveats"])
        assert str(relay.port) not in " ".join(stale["caveats"])
        ready = client.get("/readyz").json()
        assert (ready["status"], ready["records"] > 0) == ("stale", True)
        assert "cannot be reached" in ready["components"]["database"]
        headers = {"authorization": f"Bearer {write}", "content-type": "application/x-ndjson"}
        refused, seconds = timed(client.post, "/v1/measurements", content=LINE, headers=headers)
        assert (refused.status_code, seconds < 3 * CONNECT_S + 2) == (503, True)
        with ThreadPoolExecutor(8) as pool:  # that they wait one after the other would take much longer
            asked, seconds = timed(lambda: list(pool.map(lambda _: client.get("/v1/measurements"), range(8))))
        assert ({one.status_code for one in asked}, seconds < 3 * CONNECT_S + 2) == ({503}, True)
        relay.speak()
        deadline = time.monotonic() + 20
        while client.get("/readyz").json()["status"] != "ready" and time.monotonic() < deadline:
            time.sleep(0.1)
        assert client.post("/v1/choices", json=KNOWN).json()["caveats"] == []
        assert client.post("/v1/measurements", content=LINE, headers=headers).status_code == 200
    selector.close()


def test_nobody_waits_until_silence_is_trouble(relay, url, monkeypatch):
    monkeypatch.setattr(engine_module, "SILENT_S", 60.0)
    selector = Selector(url)
    selector.choose(hidden=256, batch=32)
    relay.hush()
    time.sleep(2 * engine_module.CHECK_S)
    for _ in range(3):  # the first of them looks
        choice, seconds = timed(selector.choose, hidden=256, batch=32)
        assert (choice.caveats, seconds < AT_ONCE_S) == ((), True)
    monkeypatch.setattr(engine_module, "SILENT_S", 0.0)
    stale = selector.choose(hidden=256, batch=32)
    assert [caveat for caveat in stale.caveats if "does not answer: see its server" in caveat]
    selector.close()


def test_a_slow_statement_of_a_server_that_is_alive_goes_on(url):
    with Database.open(url) as database, database.read() as connection:
        assert connection.exec_driver_sql("SELECT 7 FROM pg_sleep(1.2)").scalar() == 7


def test_a_statement_in_the_middle_of_which_the_server_falls_silent_ends(relay, url):
    def ask(database):
        with database.read() as connection:
            relay.hush()
            connection.exec_driver_sql("SELECT 1")

    with Database.open(url) as database:
        started = time.monotonic()
        with pytest.raises(DatabaseUnreachable, match="silent"):
            ask(database)
        assert time.monotonic() - started < CONNECT_S + 3
        relay.speak()
        time.sleep(silence.REST_S)
        with database.read() as connection:
            assert records.total(connection)


def test_clients_that_are_gone_in_mid_transaction_hold_nobody_up(url):
    with Database.open(url) as database, database.read() as connection:
        limits = [
            connection.exec_driver_sql(f"SHOW {name}").scalar()
            for name in ("statement_timeout", "idle_in_transaction_session_timeout")
        ]
    assert limits == ["10min", "5min"]
