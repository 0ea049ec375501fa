"""Metrics and logs say what happened, and their labels are few whatever is asked."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from kernel_selector.service.app import create_app
from kernel_selector.service.logs import LOGGER, JsonLines

SIZES = {"hyperparameters": {"hidden": 64, "batch": 8}}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def service(selector):
    """A client whose counts begin at zero."""
    with TestClient(create_app(selector), base_url="http://127.0.0.1") as started:
        yield started


def counts(client):
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = (line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def test_requests_and_choices_are_counted(service):
    for _ in range(3):
        service.post("/v1/choices", json=SIZES)
    service.post("/v1/choices", json={"hyperparameters": {}})
    body = {"problems": [SIZES, {**SIZES, "memory": 1}], "devices": ["cpu"]}
    service.post("/v1/choices:batch", json=body)
    found = counts(service)
    assert found['selector_requests_total{method="POST",path="/v1/choices",status="200"}'] == 3
    assert found['selector_requests_total{method="POST",path="/v1/choices",status="422"}'] == 1
    assert found['selector_request_seconds_count{path="/v1/choices"}'] == 4
    assert found['selector_choices_total{source="exact"}'] == 4
    assert found['selector_choice_errors_total{kind="NothingFits"}'] == 1
    assert found["selector_database_readable"] == 1
    assert found["selector_records"] > 0


def test_what_clients_make_up_is_no_label(service):
    for path in ("/a", "/b%0A", "/v1/operators/lstmm", "/v1/operators/grü"):
        service.get(path)
    service.request("MADE-UP", "/c")
    found = counts(service)
    text = " ".join(found)
    assert 'path="none"' in text
    assert 'path="/v1/operators/{name}"' in text
    assert "lstmm" not in text
    assert "MADE-UP" not in text


def test_lines_of_json():
    record = LOGGER.makeRecord(LOGGER.name, logging.INFO, "", 0, "a\nb %s", ("c",), None)
    line = JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "a\nb c"
    fields = {"method": "GET", "path": "/x\n", "status": 200}
    record.request = fields
    document = json.loads(JsonLines().format(record))
    assert fields.items() <= document.items()
    assert document["level"] == "info"


def test_processes_add_up_their_counts(tmp_path):
    code = """
import sys
from kernel_selector.service.metrics import Metrics
metrics = Metrics()
metrics.received(added=2)
class Nothing:
    def status(self):
        return {"trouble": None, "records": 5, "models": []}
print(metrics.text(Nothing()).decode())
"""
    for expected in (2, 4):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        assert f'selector_records_received_total{{fate="added"}} {expected}.0' in done.stdout
