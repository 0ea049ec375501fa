"""What HTTP asks of a service beside its documents: HEAD, lists of tags, parameters, clients that go away."""

from __future__ import annotations

import asyncio
import logging

import pytest
from starlette.testclient import TestClient

from kernel_selector.service import tokens
from kernel_selector.service.app import create_app
from kernel_selector.service.logs import LOGGER
from kernel_selector.service.settings import Settings

FREE = ("/healthz", "/readyz", "/metrics", "/", "/page/style.css", "/docs", "/openapi.json")
READ = ("/v1/operators", "/v1/operators/lstm", "/v1/devices", "/v1/measurements", "/v1/profiling-jobs")


@pytest.mark.parametrize("path", [*FREE, *READ, "/v1/operators/lstmm"])
def test_head_is_get_without_a_body(client, path):
    whole, head = client.get(path), client.head(path)
    assert (head.status_code, head.content) == (whole.status_code, b"")
    varying = {"x-request-id", "content-length" if path in ("/metrics", "/") else ""}
    assert {name: value for name, value in head.headers.items() if name not in varying} == {
        name: value for name, value in whole.headers.items() if name not in varying
    }
    assert int(head.headers["content-length"]) > 0


def test_head_needs_the_scope_of_get(selector, empty_database):
    secret = tokens.create_token(empty_database, "reader")
    app = create_app(selector, settings=Settings(tokens="required"))
    app.state.access = tokens.AccessList(type(selector)(empty_database))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.head("/v1/operators").status_code == 401
        given = {"authorization": f"Bearer {secret}"}
        assert client.head("/v1/operators", headers=given).status_code == 200
        assert client.head("/v1/quarantine", headers=given).status_code == 403


def test_head_is_logged_and_allowed_as_such(client, caplog):
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        client.head("/v1/operators")
    assert "HEAD '/v1/operators' 200" in caplog.text
    line = 'selector_requests_total{method="HEAD",path="/v1/operators",status="200"}'
    assert line in client.get("/metrics").text
    assert client.head("/v1/choices").status_code == 405
    for path in ("/", "/page/style.css", "/v1/operators"):
        assert client.post(path, headers={"authorization": ""}).status_code in (401, 405)
        assert client.put(path).headers["allow"] == "GET, HEAD"
    assert client.put("/v1/measurements").headers["allow"] == "GET, HEAD, POST"


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("GET", "/v1/measurements?limt=5", "Unknown parameter 'limt' in the address. Did you mean 'limit'?"),
        ("GET", "/v1/measurements?limit=1&limit=2", "limit is given 2 times ('1', '2'): expected it once."),
        ("GET", "/v1/operators?name=lstm", "Unknown parameter 'name' in the address. This path has none."),
        ("GET", "/v1/profiling-jobs?state=", "Unknown parameter 'state' in the address."),
        (
            "POST",
            "/v1/placements?fromat=ray",
            "Unknown parameter 'fromat' in the address. Did you mean 'format'?",
        ),
        ("POST", "/v1/choices?hidden=64", "Unknown parameter 'hidden' in the address."),
        ("POST", "/v1/choices?%00", "in the address."),
    ],
)
def test_parameters_of_no_path_are_refused(client, method, path, words):
    answer = client.request(method, path, json={"hyperparameters": {"hidden": 64, "batch": 8}})
    assert answer.status_code == 422
    assert words in answer.json()["detail"]
    assert answer.headers["content-type"] == "application/problem+json"


def test_what_probes_add_to_an_address_does_no_harm(client):
    for path in ("/healthz?probe=1", "/readyz?probe=1", "/metrics?probe=1"):
        assert client.get(path).status_code == 200


def test_a_list_of_tags_may_come_in_several_lines(client):
    tag = client.get("/v1/operators").headers["etag"]
    for tags, expected in (
        ([f'"a", W/{tag}'], 304),
        (['"a"', tag], 304),
        (['"a"', '"b"'], 200),
        (["*"], 304),
    ):
        given = [("if-none-match", one) for one in tags]
        assert client.get("/v1/operators", headers=given).status_code == expected


def test_a_second_host_is_no_way_around_the_first(client):
    for hosts in (["127.0.0.1", "attacker.example"], ["attacker.example", "127.0.0.1"]):
        answer = client.get("/v1/operators", headers=[("host", host) for host in hosts])
        assert answer.status_code == 401


def test_a_client_that_goes_away_is_no_fault_of_ours(client, caplog):
    async def receive():
        return {"type": "http.disconnect"}

    async def send(_):
        raise AssertionError("nobody is there")

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/choices",
        "headers": [(b"host", b"127.0.0.1")],
        "query_string": b"",
        "server": ("127.0.0.1", 80),
        "app": client.app,
    }
    with caplog.at_level(logging.INFO, logger=LOGGER.name):
        asyncio.run(client.app(scope, receive, send))
    assert "POST '/v1/choices' 499" in caplog.text
    assert 'status="499"' in client.get("/metrics").text
