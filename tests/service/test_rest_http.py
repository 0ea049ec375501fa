"""What HTTP asks of a service beside its documents: HEAD."""

from __future__ import annotations

import logging

import pytest
from starlette.testclient import TestClient

from kernel_selector.service.app import create_app
from kernel_selector.service.settings import Settings
from selector import access

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
    secret = access.create_token(empty_database, "reader")
    app = create_app(selector, settings=Settings(tokens="required"))
    app.state.access = access.AccessList(type(selector)(empty_database))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.head("/v1/operators").status_code == 401
        given = {"authorization": f"Bearer {secret}"}
        assert client.head("/v1/operators", headers=given).status_code == 200
        assert client.head("/v1/quarantine", headers=given).status_code == 403


def test_head_is_logged_and_allowed_as_such(client, caplog):
    with caplog.at_level(logging.INFO):
        client.head("/v1/operators")
    assert "HEAD '/v1/operators' 200" in caplog.text
    line = 'selector_requests_total{method="HEAD",path="/v1/operators",status="200"}'
    assert line in client.get("/metrics").text
    assert client.head("/v1/choices").status_code == 405
    for path in ("/", "/page/style.css", "/v1/operators"):
        assert client.post(path, headers={"authorization": ""}).status_code in (401, 405)
        assert client.put(path).headers["allow"] == "GET, HEAD"
    assert client.put("/v1/measurements").headers["allow"] == "GET, HEAD, POST"
