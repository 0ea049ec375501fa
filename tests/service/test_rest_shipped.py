"""A service over a few measurements of one's own answers all that one without any does, from what ships."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from kernel_selector.db import Database, records
from kernel_selector.kernels.contract import Status
from kernel_selector.service import tokens
from kernel_selector.service.app import create_app
from kernel_selector.service.settings import Settings
from selector import Selector
from selector.selection import shipped
from selector.selection.answer import USED
from tests.selector.conftest import forget_what_ships
from tests.service.conftest import measured_records
from tests.service.test_rest_measurements import scaled, send

LAYER = {"operator": "lstm", "hyperparameters": {"hidden": 1024, "batch": 64}}
PLACEMENTS = ["json", "plain", "k8s-dra", "k8s-affinity", "slurm", "ray"]
OUTLIER = "where the median of 1 record that came with this package is"
THROUGHPUTS = ["json", "csv", "gavel", "sia", "adaptdl"]


@pytest.fixture(scope="module")
def client(database_file, tmp_path_factory):
    """A client of the service over the measured database, and over what ships."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        forget_what_ships()
        selector = Selector(database_file, shipped=True)
        with TestClient(create_app(selector), base_url="http://127.0.0.1") as started:
            yield started
        selector.close()
    forget_what_ships()


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
    assert Selector().with_shipped is wanted


@pytest.fixture
def measured_by_us(tmp_path, monkeypatch):
    """Records that ship in the place of those that do: the later a candidate, the slower."""
    path = tmp_path / "ships.sqlite"
    found = [scaled(one, 100, driver=one.environment.driver) for one in measured_records()]
    with Database.open(path, create=True) as database, database.write() as connection:
        records.add(connection, found)
    monkeypatch.setenv("SELECTOR_SHIPPED", "on")
    monkeypatch.setattr(shipped, "unpacked", lambda: path)
    monkeypatch.setattr("selector.selection.selector.CHECK_S", 0.0)
    monkeypatch.setattr("selector.selection.devices._probed", lambda _: found[0].device)
    forget_what_ships()
    yield [one for one in found if one.problem == found[0].problem]
    forget_what_ships()


def test_what_a_trusted_token_sends_is_held_against_what_ships(measured_by_us, empty_database):
    best, *_, slowest = measured_by_us
    question = {"hyperparameters": {"hidden": 256, "batch": 32}}
    secret = tokens.create_token(empty_database, "worker", scopes=["measure", "read"])
    headers = {"authorization": f"Bearer {secret}"}
    with (
        closing(Selector(empty_database)) as selector,
        TestClient(create_app(selector), base_url="http://127.0.0.1", headers=headers) as client,
    ):
        assert client.post("/v1/choices", json=question).json()["implementation"] == best.implementation
        sent = send(client, [scaled(slowest, 1 / 20)]).json()
        assert (sent["added"], len(sent["quarantined"])) == (0, 1)
        assert OUTLIER in sent["quarantined"][0]["detail"]
        failed = replace(best, status=Status.TIMEOUT, reason="late", forward=None, forward_backward=None)
        for one in (scaled(slowest, 1 / 7.9), replace(failed, memory=None)):
            assert send(client, [one]).json()["added"] == 1  # and waits: another machine may be so
            choice = client.post("/v1/choices", json=question).json()
            assert choice["implementation"] == best.implementation
        more = replace(best, memory=replace(best.memory, peak_bytes=2**30))
        (aside,) = send(client, [more]).json()["quarantined"]
        assert aside["detail"] == f"peak_bytes of 1 GiB, {OUTLIER} 32 MiB"
        again = send(client, [scaled(slowest, 1 / 20)]).json()["quarantined"]
        assert OUTLIER in again[0]["detail"]
