"""Throughputs and placements over HTTP: what the selector says, in every format, and clear refusals."""

import csv
import io
import runpy
from types import SimpleNamespace

import pytest

from kernel_selector.kernels.devices import known_devices
from kernel_selector.service.scheduling.placement import Job, throughputs
from kernel_selector.service.settings import InvalidSetting, Settings
from selector import Query

JOBS = [{"name": "small", "operator": "lstm", "hyperparameters": {"hidden": 64}}]
LAYER = {"hyperparameters": {"hidden": 64, "batch": 8}}


def post(client, path, **body):
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response


def test_throughputs_are_those_of_the_selector(client, selector):
    found = post(client, "/v1/throughputs", jobs=JOBS, devices=["cpu"], batches=[8, 16]).json()
    job = Job(name="small", query=Query(operator="lstm", hyperparameters={"hidden": 64}))
    own = throughputs(selector, [job], ["cpu"], [8, 16])
    assert found == {"throughputs": [row.to_dict() for row in own]}
    assert found["throughputs"][0]["source"] == "exact"


def test_all_known_devices_by_default_and_the_measured_ones_in_the_format_of_a_scheduler(client):
    rows = post(client, "/v1/throughputs", jobs=JOBS, batches=[8]).json()["throughputs"]
    assert {row["device"] for row in rows} >= known_devices().keys()
    (measured,) = (row for row in rows if row["feasible"])
    assert measured["cost_per_item"] is None
    assert post(client, "/v1/throughputs?format=gavel", jobs=JOBS, batches=[8]).json().keys() == {
        measured["device"]
    }
    ranked = post(client, "/v1/placements", **LAYER).json()["placements"]
    assert ranked[0]["device"] == measured["device"]
    assert {row["device"] for row in ranked} == {row["device"] for row in rows}


def test_what_an_item_costs_where_a_device_has_a_price(client, monkeypatch):
    monkeypatch.setitem(client.app.state.prices, "cpu", 3.6)
    (row,) = post(client, "/v1/throughputs", jobs=JOBS, devices=["cpu"], batches=[8]).json()["throughputs"]
    assert row["cost_per_item"] == pytest.approx(1e-3 / row["items_per_s"])
    (row,) = post(client, "/v1/placements", devices=["cpu"], **LAYER).json()["placements"]
    assert row["throughput"]["cost_per_item"] > 0


@pytest.mark.parametrize(
    "prices", [{"h100": 0}, {"h100": -1}, {"h2000": 1.0}, {"mi300x": 1.0}, {"h100": "much"}]
)
def test_a_price_that_cannot_be(prices):
    with pytest.raises(InvalidSetting, match="PRICES"):
        Settings.load(prices=prices)


def test_prices_from_the_environment(monkeypatch):
    monkeypatch.setenv("SELECTOR_PRICES", '{"h100": 2.5}')
    assert Settings.load().prices == {"h100": 2.5}


def test_the_time_estimator_for_skypilot(client, monkeypatch):
    estimator = runpy.run_path("docs/schedulers/skypilot.py")["time_estimator"]

    def answer(asked, timeout):
        assert timeout
        return io.BytesIO(
            client.post(asked.full_url, content=asked.data, headers=dict(asked.headers)).content
        )

    monkeypatch.setattr("urllib.request.urlopen", answer)
    seconds = estimator({"operator": "lstm", **LAYER}, 1000, url="http://127.0.0.1")
    (row,) = post(client, "/v1/placements", devices=["cpu"], operator="lstm", **LAYER).json()["placements"]
    assert seconds(SimpleNamespace(accelerators=None)) == pytest.approx(row["throughput"]["time_ms"])
    assert seconds(SimpleNamespace(accelerators={"A100": 1})) == float("inf")  # nothing is known of it here


def test_jobs_get_names(client):
    layers = [{"operator": "gru", "hyperparameters": {"hidden": 8, "batch": 2}}, LAYER]
    rows = post(client, "/v1/throughputs", jobs=layers, devices=["cpu"]).json()["throughputs"]
    assert [row["job"] for row in rows] == ["gru-0", "lstm-1"]


@pytest.mark.parametrize(("format", "kind"), [("csv", "text/csv"), ("sia", "text/csv")])
def test_tables(client, format, kind):
    answer = post(client, f"/v1/throughputs?format={format}", jobs=JOBS, devices=["cpu"], batches=[8])
    assert answer.headers["content-type"].startswith(kind)
    (row,) = csv.DictReader(io.StringIO(answer.text))
    assert row["batch" if format == "csv" else "local_bsz"] == "8"


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)"])
def test_text_that_spreadsheets_would_compute_stays_text(client, name):
    jobs = [{**JOBS[0], "name": name}]
    answer = post(client, "/v1/throughputs?format=csv", jobs=jobs, devices=["cpu"], batches=[8])
    (row,) = csv.DictReader(io.StringIO(answer.text))
    assert row["job"] == f"'{name}"
    assert float(row["time_ms"]) > 0


def test_a_name_of_its_own_is_not_that_of_another_job(client):
    layers = [{"name": "lstm-1", **LAYER}, LAYER]
    answer = client.post("/v1/throughputs?format=gavel", json={"jobs": layers, "devices": ["cpu"]})
    assert answer.status_code == 422
    assert "'lstm-1'" in answer.json()["detail"]


def test_a_device_or_size_that_is_named_twice_is_one_line_for_sia(client):
    twice = {"devices": ["cpu", "cpu"], "batches": [8, 8]}
    answer = post(client, "/v1/throughputs?format=sia", jobs=JOBS, **twice)
    assert len(list(csv.DictReader(io.StringIO(answer.text)))) == 1


def test_files_of_other_schedulers(client):
    gavel = post(client, "/v1/throughputs?format=gavel", jobs=JOBS, devices=["cpu"], batches=[8]).json()
    ((worker, jobs),) = gavel.items()
    assert "amd" in worker or "intel" in worker or jobs
    assert jobs["('small (batch size 8)', 1)"]["null"] > 0
    one_point = client.post(
        "/v1/throughputs?format=adaptdl", json={"jobs": JOBS, "devices": ["cpu"], "batches": [8]}
    )
    assert one_point.status_code == 422
    assert "two or more" in one_point.json()["detail"]


def test_placements(client):
    ranked = post(client, "/v1/placements", **LAYER, devices=["h200", "cpu"]).json()["placements"]
    assert [row["rank"] for row in ranked] == [1, 2]
    assert ranked[0]["throughput"]["source"] == "exact"
    text = post(client, "/v1/placements?format=plain", **LAYER, devices=["h200", "cpu"]).text
    assert [line.split("\t")[0] for line in text.splitlines()] == [row["device"] for row in ranked]


@pytest.mark.parametrize("format", ["slurm", "ray", "k8s-dra", "k8s-affinity"])
def test_no_gpu_is_a_clear_answer(client, format):
    answer = client.post(f"/v1/placements?format={format}", json={**LAYER, "devices": ["cpu"]})
    assert answer.status_code == 409
    assert answer.json()["type"].endswith(":nothing-fits")


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/v1/throughputs", {}, 422, "jobs is missing"),
        ("/v1/throughputs", {"jobs": JOBS, "batches": [0]}, 422, "batches.0=0"),
        ("/v1/throughputs", {"jobs": JOBS, "batches": ["8"]}, 422, "expected a whole number"),
        ("/v1/throughputs", {"jobs": JOBS, "batches": [True]}, 422, "expected a whole number"),
        ("/v1/throughputs", {"jobs": JOBS, "batches": [2**63]}, 422, "batches.0"),
        ("/v1/throughputs", {"jobs": JOBS, "batches": [1.5]}, 422, "batches.0=1.5"),
        ("/v1/throughputs", {"jobs": JOBS * 2}, 422, "two jobs have the same name"),
        ("/v1/throughputs", {"jobs": JOBS * 2, "batches": [1] * 1000, "devices": ["cpu"] * 5}, 422, "10000"),
        ("/v1/throughputs", {"jobs": JOBS, "devices": ["nonesuch"], "batches": [1]}, 422, "nonesuch"),
        ("/v1/throughputs", {"jobs": JOBS, "devices": ["cpu"]}, 422, "needs batch"),
        ("/v1/throughputs?format=xml", {"jobs": JOBS}, 422, "format='xml'"),
        ("/v1/placements", {"hyperparameters": {"hidden": 0, "batch": 1}}, 422, "hidden=0"),
        ("/v1/placements", {**LAYER, "devices": []}, 422, "at least 1"),
        ("/v1/placements?format=", LAYER, 422, "format=''"),
    ],
)
def test_wrong_questions(client, path, body, status, word):
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert word in answer.json()["detail"]


def test_a_fault_of_a_parameter_points_at_no_body(client):
    (fault,) = client.post("/v1/placements?format=xml", json=LAYER).json()["errors"]
    assert fault["parameter"] == "format"
    assert "pointer" not in fault
