"""Tokens: who needs one, what it allows, how it ends, and that nothing is given away."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kernel_selector.db import Database, DatabaseUnreachable, records
from kernel_selector.service import access, tokens
from kernel_selector.service.access import NEEDED, Rates
from kernel_selector.service.app import create_app
from kernel_selector.service.openapi.example_record import LINE
from kernel_selector.service.settings import Settings
from selector import InvalidRequest, Selector

SIZES = {"hyperparameters": {"hidden": 64, "batch": 8}}
FROM_AFAR = "http://198.51.100.7"
HERE = "http://127.0.0.1"


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "tokens.sqlite"
    Database.open(path, create=True).close()
    return path


@pytest.fixture
def service(database, monkeypatch):
    """A function: a client of the service over an address, with settings."""
    monkeypatch.setattr(tokens, "LOOK_S", 0.0)
    selector = Selector(database)

    def client(base_url=FROM_AFAR, **settings):
        return TestClient(create_app(selector, settings=Settings(**settings)), base_url=base_url)

    yield client
    selector.close()


def headers(secret):
    return {"authorization": f"Bearer {secret}"}


def status(client, secret=None, path="/v1/operators"):
    return client.get(path, headers=headers(secret) if secret else {}).status_code


def test_from_afar_reading_needs_a_token(service, database):
    client = service()
    refused = client.post("/v1/choices", json=SIZES)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.headers["content-type"] == "application/problem+json"
    secret = tokens.create_token(database, "scheduler")
    assert client.post("/v1/choices", json=SIZES, headers=headers(secret)).status_code == 200
    for path in ("/healthz", "/openapi.json"):
        assert status(client, path=path) == 200
    assert status(client, path="/readyz") == 503  # of an empty database, not of a missing token
    assert status(client, path="/v1/nonesuch") == 401


@pytest.mark.parametrize("base_url", ["http://127.0.0.1", "http://127.9.9.9", "http://[::1]"])
def test_over_the_loopback_interface_reading_is_free_and_writing_is_not(service, base_url):
    client = service(base_url)
    assert status(client) == 200
    for method, path in (("POST", "/v1/measurements"), ("GET", "/v1/quarantine")):
        assert client.request(method, path).status_code == 401


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("attacker.example", 401),
        ("localhost.attacker.example", 401),
        ("127.0.0.1.attacker.example:8000", 401),
        ("LocalHost:80", 200),
        ("[", 401),
        ("", 401),
        ("attacker.example@localhost", 401),
        ("localhost:8000@attacker.example", 401),
        ("localhost/.attacker.example", 401),
        ("localhost?attacker.example", 401),
        ("localhost:", 401),
        ("localhost:1:2", 401),
        ("localhost:65535", 200),
        ("localhost:65536", 401),
        ("127.0.0.1:99999", 401),
        ("[::1]:0", 401),
        ("::1", 401),
        ("[::1].attacker.example", 401),
        ("[127.0.0.1]", 401),
        ("127.0.0.1%00", 401),
        ("localhost, attacker.example", 401),
    ],
)
def test_a_name_that_leads_here_is_not_this_host(service, host, expected):
    assert service("http://127.0.0.1").get("/v1/operators", headers={"host": host}).status_code == expected


def test_tokens_can_be_required_everywhere(service):
    assert status(service("http://127.0.0.1", tokens="required")) == 401


def test_a_wrong_token_is_refused_also_where_none_is_needed(service):
    assert status(service("http://127.0.0.1"), secret=tokens.new_secret()) == 401


def test_no_hint_which_it_was(service, database):
    client = service()
    revoked = tokens.create_token(database, "revoked")
    tokens.revoke_token(database, "revoked")
    expired = tokens.create_token(database, "expired", days=1e-9)
    answers = [
        client.get("/v1/operators", headers=given).text
        for given in (
            {},
            *(headers(secret) for secret in (revoked, expired, tokens.new_secret(), "ks_", "", "%" * 9)),
            {"authorization": f"Basic {revoked}"},
            {"authorization": "Bearer"},
            {"authorization": "x" * 10_000},
            {"authorization": b"Bearer \xe9\xff"},
        )
    ]
    assert len(set(answers)) == 1


def test_scopes(service, database):
    client = service()
    reader = tokens.create_token(database, "reader", scopes=["read"])
    measurer = tokens.create_token(database, "measurer", scopes=["measure"])
    admin = tokens.create_token(database, "admin", scopes=["admin", "read"])
    for secret, path, expected in (
        (reader, "/v1/operators", 200),
        (measurer, "/v1/operators", 403),
        (reader, "/v1/quarantine", 403),
        (admin, "/v1/quarantine", 200),
    ):
        assert status(client, secret, path) == expected
    assert client.post("/v1/measurements", headers=headers(reader)).status_code == 403
    assert client.post("/v1/measurements", headers=headers(measurer)).status_code == 415


def test_a_token_ends_without_a_restart(service, database):
    client = service()
    secret = tokens.create_token(database, "scheduler")
    assert status(client, secret) == 200
    tokens.revoke_token(database, "scheduler")
    assert status(client, secret) == 401


def test_a_token_that_ends_while_the_body_comes_stores_nothing(service, database):
    app = service().app
    secret = tokens.create_token(database, "worker", scopes=["measure"])
    parts, answers = [LINE[:50].encode(), LINE[50:].encode()], []

    async def receive():
        part = parts.pop(0)
        if not parts:
            tokens.revoke_token(database, "worker")
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message):
        answers.append(message)

    given = {**headers(secret), "content-type": "application/x-ndjson"}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/measurements",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "query_string": b"",
        "app": app,
    }
    asyncio.run(app(scope, receive, send))
    assert answers[0]["status"] == 401
    with Database.open(database) as opened, opened.read() as connection:
        assert records.total(connection) == 0


def test_rotation(service, database):
    client = service()
    old = tokens.create_token(database, "scheduler", scopes=["admin"])
    new = tokens.rotate_token(database, "scheduler", grace_hours=1)
    assert status(client, old, "/v1/quarantine") == status(client, new, "/v1/quarantine") == 200
    last = tokens.rotate_token(database, "scheduler", grace_hours=0)
    assert status(client, new, "/v1/quarantine") == 401
    tokens.revoke_token(database, "scheduler")
    assert [status(client, secret, "/v1/quarantine") for secret in (old, new, last)] == [401] * 3


def test_tokens_count_while_the_database_is_away(service, database):
    client = service()
    secret = tokens.create_token(database, "scheduler")
    assert status(client, secret) == 200
    database.write_bytes(b"\xff" * 5000)
    assert status(client, secret) == 200


def test_without_a_database_nobody_can_be_known(service, database):
    client = service()
    secret = tokens.create_token(database, "scheduler")
    database.write_bytes(b"\xff" * 5000)
    answer = client.get("/v1/operators", headers=headers(secret))
    assert answer.status_code == 503
    assert answer.json()["type"].endswith(":database-unavailable")


def test_the_secret_is_kept_nowhere(database):
    secret = tokens.create_token(database, "scheduler")
    assert tokens.well_formed(secret)
    assert not tokens.well_formed(secret[:-1] + ("0" if secret[-1] != "0" else "1"))
    stored = b"".join(file.read_bytes() for file in database.parent.iterdir())
    assert secret.encode() not in stored
    assert secret.split("_", 1)[1][:43].encode() not in stored
    assert tokens.digest(secret).encode() in stored


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"name": ""}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": "a", "scopes": ["write"]}, "read, measure, admin"),
        ({"name": "a", "scopes": []}, "scopes"),
        ({"name": "a", "days": 0}, "days"),
        ({"name": "a", "days": float("nan")}, "days"),
        ({"name": "taken"}, "valid token 'taken'"),
    ],
)
def test_tokens_that_are_none(database, given, word):
    tokens.create_token(database, "taken")
    with pytest.raises(InvalidRequest, match=word):
        tokens.create_token(database, **given)


# as they stand in an address; a route's regular expression ends before a newline at the end
ENDS = ("%0a", "%0A", "%0d%0a", "%0b", "%00", "%c2%85", "%e2%80%a8")


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "PATCH", "TRACE"])
def test_the_methods_of_a_path_are_for_whoever_may_use_it(service, database, method):
    client = service("http://127.0.0.1")
    reader, worker = (
        {"authorization": f"Bearer {tokens.create_token(database, scope, scopes=[scope])}"}
        for scope in ("read", "measure")
    )
    for path, headers, expected in (
        ("/v1/audit", {}, 401),
        ("/v1/audit", reader, 403),
        ("/v1/measurements:retract", {}, 401),
        ("/v1/profiling-tasks:claim", {}, 401),
        ("/v1/profiling-tasks:claim", worker, 405),
        ("/v1/measurements", {}, 405),  # which everybody here may read
    ):
        answer = client.request(method, path, headers=headers)
        assert answer.status_code == expected, path
        assert ("allow" in answer.headers) is (expected == 405)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("method", "path"), [*NEEDED, ("DELETE", "/v1/profiling-jobs/1")])
def test_no_way_to_write_a_path_needs_less(service, database, method, path, end):
    """With `%0a` behind it all of them were reading: measurements could be retracted without a token."""
    reader = tokens.create_token(database, "reader")
    for client, secret in ((service(HERE), None), (service(), reader)):
        given = headers(secret) if secret else {}
        answer = client.request(method, f"{path}{end}", headers=given, json={"author": "a", "reason": "b"})
        assert answer.status_code == 404


@pytest.mark.parametrize(("method", "path"), [*NEEDED, ("DELETE", "/v1/profiling-jobs/1")])
def test_a_route_asks_for_the_scope_of_its_own_path(service, database, monkeypatch, method, path):
    """Whatever came of the path before: the look-up that goes before the body is not the only one."""
    monkeypatch.setattr(access, "needed_scope", lambda *_: "read")
    reader = tokens.create_token(database, "reader")
    for client, secret in ((service(HERE), None), (service(), reader)):
        given = headers(secret) if secret else {}
        answer = client.request(method, path, headers=given, json={"author": "a", "reason": "b"})
        assert answer.status_code == 403
        assert "needs a token with the scope" in answer.json()["detail"]


def test_names_without_a_token(database):
    for change in (tokens.revoke_token, tokens.rotate_token):
        with pytest.raises(InvalidRequest, match="no valid token"):
            change(database, "nonesuch")
    with pytest.raises(InvalidRequest, match="grace_hours"):
        tokens.rotate_token(database, "a", grace_hours=-1)


def test_a_token_that_asks_too_often(service, database):
    client = service(requests_per_s=1)
    first, second = (tokens.create_token(database, name) for name in ("first", "second"))
    assert status(client, second) == 200  # which reads what the next ones find: they take no second
    found = [client.get("/v1/operators", headers=headers(first)) for _ in range(4)]
    assert [answer.status_code for answer in found] == [200, 200, 429, 429]
    assert 1 <= int(found[-1].headers["retry-after"]) <= 2
    assert status(client, second) == 200


def test_buckets_fill_again(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("kernel_selector.service.access.time.monotonic", lambda: now[0])
    rates = Rates(2.0)
    assert [rates.wait_s("a") for _ in range(4)] == [0.0] * 4
    assert rates.wait_s("a") == pytest.approx(0.5)
    now[0] += 0.5
    assert rates.wait_s("a") == 0.0
    now[0] += 1e9
    assert [rates.wait_s("a") > 0 for _ in range(5)] == [False] * 4 + [True]
    assert Rates(0).wait_s("a") == 0.0


def test_a_request_that_comes_while_the_tokens_are_first_read_waits_for_them(database, monkeypatch):
    secret = tokens.create_token(database, "worker")
    selector = Selector(database)
    listed, begun, go_on = tokens.AccessList(selector), Event(), Event()
    read = selector.database.read

    @contextmanager
    def slowly():
        begun.set()
        assert go_on.wait(30)
        with read() as connection:
            yield connection

    monkeypatch.setattr(selector.database, "read", slowly)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(listed.refresh)
        assert begun.wait(30)
        second = pool.submit(lambda: (listed.refresh(), listed.grant(secret))[1])
        assert not second.done()
        go_on.set()
        assert second.result(30).name == "worker"
        first.result(30)
    selector.close()


def test_tokens_that_could_never_be_read_are_not_called_unknown(database, monkeypatch):
    secret = tokens.create_token(database, "worker")
    selector = Selector(database)
    listed, read, looks = tokens.AccessList(selector), selector.database.read, []

    def gone():
        looks.append(1)
        raise DatabaseUnreachable("it is gone")

    monkeypatch.setattr(selector.database, "read", gone)
    for _ in range(3):
        assert listed.is_due()
        with pytest.raises(DatabaseUnreachable):
            listed.refresh()
    assert len(looks) == 1  # for about a second
    monkeypatch.setattr(selector.database, "read", read)
    listed._tokens._due = 0.0
    listed.refresh()
    assert listed.grant(secret).name == "worker"
    selector.close()


def under_a_prefix(app, how):
    """The service below `/kernels`: mounted by another application, or with a server's `--root-path`."""
    if how == "root-path":
        return TestClient(app, base_url=HERE, root_path="/kernels")
    outer = Starlette()
    outer.mount("/kernels", app)
    return TestClient(outer, base_url=HERE)


@pytest.mark.parametrize("how", ["mounted", "root-path"])
def test_scopes_are_those_of_the_paths_below_a_prefix(database, how):
    selector = Selector(database)
    reader = headers(tokens.create_token(database, "reader"))
    writer = headers(tokens.create_token(database, "writer", scopes=["measure", "admin", "read"]))
    client = under_a_prefix(create_app(selector), how)
    assert client.get("/kernels/healthz").status_code == 200
    assert client.post("/kernels/v1/choices", json=SIZES).status_code == 200
    for method, path in NEEDED:
        assert client.request(method, f"/kernels{path}").status_code == 401, path
        assert client.request(method, f"/kernels{path}", headers=reader).status_code == 403, path
    assert client.get("/kernels/", headers={"authorization": "Bearer x"}).headers["www-authenticate"] == (
        'Basic realm="kernel-selector: a token as password", charset="UTF-8"'
    )
    ndjson = {"content-type": "application/x-ndjson"}
    lines = f"{LINE}\n" * 60  # more than a question may have
    sent = client.post("/kernels/v1/measurements", content=lines, headers={**writer, **ndjson})
    assert (sent.status_code, sent.json()["received"]) == (200, 60)
    job = {"operator": "lstm", "problems": [SIZES], "devices": ["h200"]}
    where = client.post("/kernels/v1/profiling-jobs", json=job, headers=writer).headers["location"]
    assert where == "/kernels/v1/profiling-jobs/1"
    assert client.get(where).status_code == 200
    selector.close()
