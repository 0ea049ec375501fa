"""The service answers what the selector answers, with units, ids and a log."""

import inspect
import logging
import shutil
import threading
import time

import pytest
from starlette.testclient import TestClient

from kernel_selector.db import Database, records
from kernel_selector.kernels.contract import SelectorError
from kernel_selector.service import app as app_module
from kernel_selector.service.app import create_app
from kernel_selector.service.schemas.choices import ChoiceDocument
from kernel_selector.service.schemas.fields import FIELDS
from kernel_selector.service.settings import Settings
from selector import Selector
from selector.selection import knowledge

LOGGER = "uvicorn.error.kernel_selector"
SIZES = {"hidden": 256, "batch": 32}


def choose(client, **body):
    response = client.post("/v1/choices", json={"hyperparameters": SIZES, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


def test_the_answer_is_that_of_the_selector(client, selector):
    given = choose(client, operator="lstm", memory="1GiB", device="cpu")
    own = selector.choose("lstm", memory="1GiB", device="cpu", **SIZES).to_dict()
    assert given == ChoiceDocument.model_validate(own).model_dump(mode="json")
    assert given.keys() == own.keys()
    assert given["source"] == "exact"
    assert given["memory_limit_bytes"] == 2**30
    assert choose(client, operator="lstm", memory=float(2**30), device="cpu") == given  # 1.0 is 1 in JSON
    assert given["time_interval_ms"][0] <= given["time_ms"] <= given["time_interval_ms"][1]


def test_what_was_assumed_is_said(client):
    short = choose(client)
    assert short["operator_assumed"] is True
    assert short["problem"]["operator"] == "lstm"
    assert "dtype" in short["assumed"]
    assert "hidden" not in short["assumed"]
    assert choose(client, operator="lstm")["operator_assumed"] is False
    assert choose(client, operator=None)["operator_assumed"] is True


def test_torchs_long_names(client):
    long = choose(client, hyperparameters={"hidden_size": 256, "batch_size": 32})
    assert long["problem"] == choose(client)["problem"]


def test_a_share_is_a_number_and_a_default_that_came_later_is_not_said(client):
    said = choose(client, hyperparameters={**SIZES, "dropout": 0.25, "layers": 2})
    assert said["problem"]["dropout"] == 0.25
    assert "dropout" not in choose(client, hyperparameters={**SIZES, "dropout": 0})["problem"]


def test_override_and_objective(client):
    forced = choose(client, override="torch_lstm")
    assert (forced["implementation"], forced["source"]) == ("torch_lstm", "override")
    assert choose(client, objective="memory")["objective"] == "memory"


def test_implementations_to_choose_from(client):
    for names in (["hoisted"], ["torch_lstm"], ["hoisted", "torch_lstm"]):
        chosen = choose(client, among=names)
        assert chosen["implementation"] in names
        assert {one["name"] for one in chosen["candidates"] if one["excluded"] is None} <= set(names)
    batch = {"problems": [{"hyperparameters": SIZES, "among": [name]} for name in ("hoisted", "torch_lstm")]}
    answers = client.post("/v1/choices:batch", json=batch).json()["answers"]
    assert [one["choice"]["implementation"] for one in answers] == ["hoisted", "torch_lstm"]


def test_a_layer_amid_others(client):
    launched, compiled = choose(client), choose(client, regime="compiled")
    assert "regime" not in launched
    assert compiled["regime"] == "compiled"
    (caveat,) = set(compiled["caveats"]) - set(launched["caveats"])
    assert "--regime compiled` measures it." in caveat
    assert choose(client, regime="launched") == launched
    batch = {"problems": [{"hyperparameters": SIZES, "regime": one} for one in ("launched", "compiled")]}
    answers = client.post("/v1/choices:batch", json=batch).json()["answers"]
    assert [caveat in one["choice"]["caveats"] for one in answers] == [False, True]


def test_the_basis_says_whose_measurements_and_which_is_most_similar(client):
    basis = choose(client)["basis"]
    assert (basis["source"], basis["shipped_measurements"], basis["learned"]) == ("exact", 0, False)
    assert basis["own_measurements"] == len(basis["most_similar"]["times_ms"])
    assert basis["most_similar"]["values"] == {}


@pytest.mark.parametrize("name", ["selector", "question"])
def test_names_of_the_code_are_no_hyperparameters(client, name):
    response = client.post("/v1/choices", json={"hyperparameters": {**SIZES, name: 1}})
    assert (response.status_code, response.json()["title"]) == (422, "Unknown hyperparameter")


def test_a_device_that_is_elsewhere(client):
    answer = choose(client, device="h200")
    assert answer["device"]["name"] == "NVIDIA H200"
    assert answer["torch_device"] is None


def test_a_limit_that_nothing_fits(client):
    response = client.post("/v1/choices", json={"hyperparameters": SIZES, "memory": 1})
    assert response.status_code == 409
    assert response.json()["type"] == "urn:kernel-selector:problem:nothing-fits"
    assert response.headers["content-type"] == "application/problem+json"


def test_operators(client):
    listed = client.get("/v1/operators").json()
    names = [operator["name"] for operator in listed]
    assert "lstm" in names
    for operator in listed:
        assert client.get(f"/v1/operators/{operator['name']}").json() == operator
        defaults = [one["name"] for one in operator["implementations"] if one["default"]]
        assert defaults == [operator["default_implementation"]]
    hidden = listed[names.index("lstm")]["hyperparameters"][0]
    assert hidden["name"] == "hidden"
    assert hidden["aliases"] == ["hidden_size"]


def test_every_listed_device_can_be_asked_about(client):
    listed = client.get("/v1/devices").json()
    assert any(device["name"] == "NVIDIA H200" for device in listed)
    for device in listed:
        assert choose(client, device=device["key"])["device"]["name"] == device["name"]


def test_health(client):
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json()["status"] == "ready"


def assert_not_ready(client, slug):
    response = client.get("/readyz")
    assert response.status_code == 503
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["type"] == f"urn:kernel-selector:problem:{slug}"
    assert client.get("/healthz").status_code == 200
    return response.json()["detail"]


def test_without_a_database_the_service_is_not_ready_where_what_ships_is_off(tmp_path, monkeypatch):
    monkeypatch.delenv("SELECTOR_DATABASE_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with TestClient(create_app(Selector()), base_url="http://127.0.0.1") as client:
        assert "selector quickstart" in assert_not_ready(client, "not-ready")
        assert choose(client)["source"] == "default"


def test_without_a_database_what_ships_answers_and_the_service_is_ready(tmp_path, monkeypatch):
    monkeypatch.delenv("SELECTOR_DATABASE_URL", raising=False)
    monkeypatch.setenv("SELECTOR_SHIPPED", "on")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    knowledge._opened.cache_clear()
    with TestClient(create_app(Selector()), base_url="http://127.0.0.1") as client:
        assert client.get("/readyz").json()["shipped_records"]
        answer = choose(client)
    knowledge._opened.cache_clear()
    assert answer["source"] == "extrapolated"
    assert any(caveat.startswith("Extrapolated: ") for caveat in answer["caveats"])


def test_not_ready_with_an_empty_database(empty_database):
    with TestClient(create_app(Selector(empty_database)), base_url="http://127.0.0.1") as client:
        assert "no measurements" in assert_not_ready(client, "not-ready")
        assert choose(client)["source"] == "default"


def test_a_database_that_breaks_under_the_running_service(database_file, tmp_path, monkeypatch):
    monkeypatch.setattr("selector.selection.selector.CHECK_S", 0.0)
    monkeypatch.setattr("selector.selection.selector.BACK_OFF", 0)
    copy = tmp_path / "copy.sqlite"
    shutil.copy(database_file, copy)
    with TestClient(create_app(Selector(copy)), base_url="http://127.0.0.1") as client:
        before = choose(client)
        assert before["source"] == "exact"
        copy.write_bytes(b"\xff" * 50_000)
        assert "database is damaged" in assert_not_ready(client, "not-ready")
        during = choose(client)
        assert during["implementation"] == before["implementation"]
        assert any("cannot be read now" in caveat for caveat in during["caveats"])
        for file in tmp_path.glob("copy.sqlite*"):
            file.unlink()
        shutil.copy(database_file, copy)
        assert client.get("/readyz").status_code == 200
        assert choose(client)["caveats"] == before["caveats"]


def test_a_slow_database_holds_up_no_other_request(database_file, monkeypatch):
    looking, go_on = threading.Event(), threading.Event()

    def slow(_):
        looking.set()
        return not go_on.wait(30)

    with TestClient(create_app(Selector(database_file)), base_url="http://127.0.0.1") as client:
        choose(client)
        monkeypatch.setattr(Selector, "_changed", slow)
        monkeypatch.setattr("selector.selection.selector.CHECK_S", 0.0)
        client.app.state.selector.reload()  # takes the new CHECK_S
        thread = threading.Thread(target=choose, args=(client,))
        thread.start()
        try:
            assert looking.wait(30)
            assert client.get("/healthz").status_code == 200
            assert choose(client)["source"] == "exact"
        finally:
            go_on.set()
            thread.join()


def test_measurements_are_seen_without_a_restart(empty_database, database_file, monkeypatch):
    monkeypatch.setattr("selector.selection.selector.CHECK_S", 0.0)
    with TestClient(create_app(Selector(empty_database)), base_url="http://127.0.0.1") as client:
        assert choose(client)["source"] == "default"
        with Database.open(database_file) as measured, measured.read() as connection:
            found = list(records.find(connection))
        with Database.open(empty_database) as filling, filling.write() as connection:
            records.add(connection, records=found)
        assert choose(client)["source"] == "exact"
        assert client.get("/readyz").json()["records"] == len(found)


def test_an_id_for_each_request(client):
    first, second = client.get("/healthz"), client.get("/healthz")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    kept = client.get("/healthz", headers={"x-request-id": "Trace-1.2_3"})
    assert kept.headers["x-request-id"] == "Trace-1.2_3"


@pytest.mark.parametrize("unfit", ["", "a b", "x" * 65, "a\tb", '"'])
def test_an_unfit_id_is_replaced(client, unfit):
    answer = client.get("/healthz", headers={"x-request-id": unfit})
    assert answer.headers["x-request-id"] != unfit
    assert len(answer.headers["x-request-id"]) == 32


def test_one_line_of_log_for_a_request(client, caplog):
    with caplog.at_level(logging.INFO, LOGGER):
        client.get("/no%0Awhere", headers={"x-request-id": "abc"})
    (line,) = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert line.startswith("GET '/no\\nwhere' 404 ")
    assert line.endswith(" ms abc")


def test_a_long_path_is_cut_in_the_log(client, caplog):
    with caplog.at_level(logging.INFO, LOGGER):
        client.get(f"/{'a' * 9000}")
    (line,) = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert line.startswith(f"GET '/{'a' * 199}' 404 ")


def test_no_log_when_switched_off(selector, caplog):
    app = create_app(selector, settings=Settings(access_log=False))
    with TestClient(app, base_url="http://127.0.0.1") as client, caplog.at_level(logging.INFO, LOGGER):
        client.get("/healthz")
    assert caplog.records == []


def test_a_smaller_limit_on_bodies(selector):
    with TestClient(
        create_app(selector, settings=Settings(max_body_bytes=10)), base_url="http://127.0.0.1"
    ) as client:
        response = client.post("/v1/choices", json={"hyperparameters": SIZES})
    assert response.status_code == 413


@pytest.mark.parametrize("closes", [False, True])
def test_the_selector_is_warm_before_the_first_request_and_closed_where_it_is_the_services(closes):
    calls = []

    class Counting:
        def operators(self):
            calls.append("operators")

        def choose(self, *_, **__):
            calls.append("choose")
            raise SelectorError("nothing there")

        def close(self):
            calls.append("close")

    with TestClient(create_app(Counting(), closes=closes), base_url="http://127.0.0.1") as client:
        assert calls == ["operators", "choose"]
        assert client.get("/healthz").status_code == 200
    assert calls == ["operators", "choose", *(["close"] * closes)]


def test_its_end_does_not_wait_for_a_database_that_is_silent(monkeypatch):
    class Silent:
        def __init__(self):
            self.answered = threading.Event()

        def operators(self):
            raise SelectorError("nothing there")

        def close(self):
            self.answered.wait(60)

    monkeypatch.setattr(app_module, "CLOSE_S", 0.1)
    silent = Silent()
    with TestClient(create_app(silent, closes=True), base_url="http://127.0.0.1"):
        started = time.monotonic()
    assert time.monotonic() - started < 30
    silent.answered.set()


def test_no_argument_of_choose_is_left_open():
    named = {
        name
        for name, parameter in inspect.signature(Selector.choose).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert named <= FIELDS
