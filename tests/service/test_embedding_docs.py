"""docs/deploy.md is true of `create_app`: its examples run, and its table has the arguments."""

import inspect
import re
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from kernel_selector.service.app import create_app
from selector import Selector

DOCUMENT = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
SECTION = DOCUMENT.split("\n## In a program of your own, and in tests\n")[1].split("\n## ")[0]
MOUNTED, TESTED = re.findall(r"^```python\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)
QUESTION = {"hyperparameters": {"hidden": 256, "batch": 32}, "device": "cpu"}


@pytest.fixture(autouse=True)
def _folder(database_file, tmp_path, monkeypatch):
    """The working folder has the database that the examples name."""
    shutil.copy(database_file, tmp_path / "measurements.sqlite")
    monkeypatch.chdir(tmp_path)


def test_the_table_has_the_arguments():
    given = list(inspect.signature(create_app).parameters.values())[1:]
    listed = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`|[^|]+) \|", SECTION, re.MULTILINE)
    assert listed == [(one.name, "" if one.default is None else str(one.default)) for one in given]


def test_a_mounted_service_answers_and_ends_with_the_application(monkeypatch):
    closed = []
    close = Selector.close
    monkeypatch.setattr(Selector, "close", lambda self: closed.append(self) or close(self))
    names = {}
    exec(MOUNTED, names)
    with TestClient(names["app"], base_url="http://127.0.0.1") as client:
        assert client.get("/kernels/readyz").json()["status"] == "ready"
        assert client.post("/kernels/v1/choices", json=QUESTION).json()["source"] == "exact"
        assert closed == []
    assert closed == [names["service"].state.selector]


def test_the_test_runs_and_needs_its_address():
    names = {}
    exec(TESTED, names)
    assert names["answer"].json()["source"] == "exact"
    with TestClient(create_app(Selector("measurements.sqlite"), closes=True)) as client:
        assert client.base_url == "http://testserver"
        assert client.post("/v1/choices", json=QUESTION).status_code == 401
