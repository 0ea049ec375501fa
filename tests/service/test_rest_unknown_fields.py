"""A field that a request does not have is refused with the names of those that it has."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from kernel_selector.service import tokens
from kernel_selector.service.app import create_app
from selector import Selector

LAYER = {"hyperparameters": {"hidden": 64, "batch": 8}}


@pytest.fixture
def allowed(empty_database):
    secret = tokens.create_token(empty_database, "all", scopes=["read", "measure", "admin"])
    selector = Selector(empty_database)
    headers = {"authorization": f"Bearer {secret}"}
    with TestClient(create_app(selector), base_url="http://127.0.0.1", headers=headers) as client:
        yield client
    selector.close()


@pytest.mark.parametrize(
    ("path", "body", "told", "untold"),
    [
        ("choices", {**LAYER, "memry": 1}, ["Unknown field 'memry'", "mean 'memory'"], []),
        ("choices", {**LAYER, "seq": 5}, ["Hyperparameters belong inside"], []),
        ("placements", {**LAYER, "device": "cpu"}, ["mean 'devices'"], []),
        ("choices:batch", {"problems": [LAYER], "memory": 1}, ["Known: devices, problems"], ["objective"]),
        ("choices:batch", {"problems": [{**LAYER, "device": "cpu"}]}, ["'problems.0.device'"], ["Known"]),
        (
            "profiling-tasks:heartbeat",
            {"task": 1, "lease": "0" * 32, "x": 1},
            ["Known: lease, task"],
            ["Hyper"],
        ),
    ],
)
def test_the_fields_of_this_request_are_named(allowed, path, body, told, untold):
    answer = allowed.post(f"/v1/{path}", json=body)
    assert answer.status_code == 422
    detail = answer.json()["detail"]
    assert all(words in detail for words in told), detail
    assert not any(words in detail for words in untold), detail
