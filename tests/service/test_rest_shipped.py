"""A service over a few measurements of one's own answers all that one without any does, from what ships."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from kernel_selector.service.app import create_app
from kernel_selector.service.settings import Settings
from selector import Selector
from selector.selection import knowledge
from selector.selection.answer import USED

LAYER = {"operator": "lstm", "hyperparameters": {"hidden": 1024, "batch": 64}}
PLACEMENTS = ["json", "plain", "k8s-dra", "k8s-affinity", "slurm", "ray"]
THROUGHPUTS = ["json", "csv", "gavel", "sia", "adaptdl"]


@pytest.fixture(scope="module")
def client(database_file, tmp_path_factory):
    """A client of the service over the measured database, and over what ships."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        knowledge._opened.cache_clear()
        selector = Selector(database_file, shipped=True)
        with TestClient(create_app(selector), base_url="http://127.0.0.1") as started:
            yield started
        selector.close()
    knowledge._opened.cache_clear()


@pytest.mark.parametrize("format", PLACEMENTS)
def test_placements_by_default_are_of_all_that_was_measured(client, format):
    answer = client.post(f"/v1/placements?format={format}", json=LAYER)
    assert answer.status_code == 200, answer.text
    assert "h200" in answer.text.lower()


@pytest.mark.parametrize("format", THROUGHPUTS)
def test_throughputs_of_this_machine_and_of_one_that_ships(client, format):
    (here,) = {one["key"] for one in client.get("/v1/devices").json() if one["torch_device"] == "cpu"}
    asked = {"jobs": [LAYER], "devices": [here, "h200"], "batches": [16, 64]}
    answer = client.post(f"/v1/throughputs?format={format}", json=asked)
    assert answer.status_code == 200, answer.text
    assert here in answer.text
    assert "nvidia-h200" in answer.text


def test_an_answer_says_on_which_measurements_it_rests(client):
    own = client.post("/v1/choices", json={"hyperparameters": {"hidden": 256, "batch": 32}}).json()
    theirs = client.post("/v1/choices", json={**LAYER, "device": "h200"}).json()
    assert own["source"] == "exact"
    assert USED not in own["caveats"]
    assert theirs["time_ms"]
    assert USED in theirs["caveats"]


def test_the_state_says_what_is_ones_own_and_what_ships(client):
    ready = client.get("/readyz").json()
    assert ready["shipped_records"] > ready["records"] > 0
    assert ready["models"] == 0
    models = client.get("/v1/models").json()
    assert models
    assert all(one["shipped"] for one in models)


@pytest.mark.usefixtures("client")  # what ships is open
def test_an_empty_database_is_enough_to_be_ready_unless_what_ships_is_off(empty_database):
    ready = TestClient(create_app(Selector(empty_database, shipped=True)), base_url="http://127.0.0.1")
    assert ready.get("/readyz").json()["records"] == 0
    off = TestClient(create_app(Selector(empty_database, shipped=False)), base_url="http://127.0.0.1")
    assert off.get("/readyz").status_code == 503


@pytest.mark.parametrize(("text", "wanted"), [("off", False), ("on", True), ("0", False), ("true", True)])
def test_the_setting_of_the_service_is_that_of_the_library(monkeypatch, text, wanted):
    monkeypatch.setenv("SELECTOR_SHIPPED", text)
    assert Settings.load().shipped is wanted
    assert Selector()._with_shipped is wanted
