"""Many questions at once: each has the answer that it would have alone, and one fault spoils one answer."""

import json

import pytest

LAYERS = [
    {"hyperparameters": {"hidden": 256, "batch": 32}},
    {"hyperparameters": {"hidden": 64, "batch": 8}, "objective": "memory"},
    {"hyperparameters": {"hidden": 256, "batch": 32}, "memory": 1},
    {"hyperparameters": {"hiden": 256, "batch": 32}},
    {"operator": "gru", "hyperparameters": {"hidden": 33, "batch": 1}},
]
DEVICES = [None, "cpu", "h200", "nonesuch"]


def ask(client, **body):
    response = client.post("/v1/choices:batch", json=body)
    assert response.status_code == 200, response.text
    return response.json()["answers"]


def test_each_answer_is_that_of_the_question_alone(client):
    answers = ask(client, problems=LAYERS, devices=DEVICES)
    pairs = [(answer["problem"], answer["device"]) for answer in answers]
    assert pairs == [(number, device) for number in range(len(LAYERS)) for device in DEVICES]
    for answer in answers:
        alone = client.post("/v1/choices", json={**LAYERS[answer["problem"]], "device": answer["device"]})
        if alone.status_code == 200:
            whole, short = alone.json(), answer["choice"]
            excluded = {one["name"]: one["excluded"] for one in whole["candidates"] if one["excluded"]}
            assert short.pop("exclusions") == excluded
            assert short == {name: whole[name] for name in short}
            assert answer["error"] is None
        else:
            said, expected = answer["error"], alone.json()
            assert {**said, "instance": "", "errors": None} == {**expected, "instance": "", "errors": None}
            assert answer["choice"] is None
    assert sum(answer["error"] is None for answer in answers) == 9


def test_the_devices_of_the_machine_by_default(client):
    (answer,) = ask(client, problems=LAYERS[:1])
    assert answer["device"] is None
    assert answer["choice"]["source"] == "exact"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "problems is missing"),
        ({"problems": []}, "at least 1"),
        ({"problems": LAYERS, "devices": []}, "at least 1"),
        ({"problems": LAYERS[:1] * 1001}, "1000"),
        ({"problems": LAYERS[:1] * 300, "devices": DEVICES}, "1200 questions at once: expected at most 1000"),
        ({"problems": LAYERS[:1], "device": "cpu"}, "'device'"),
        ({"problems": [{**LAYERS[0], "device": "cpu"}]}, "device"),
        ({"problems": [{"hyperparameters": {"hidden": [1]}}]}, "problems.0.hyperparameters.hidden=[1]"),
        ({"problems": LAYERS, "devices": [1]}, "devices.0=1"),
    ],
)
def test_batches_that_are_none(client, body, word):
    response = client.post("/v1/choices:batch", json=body)
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert word in response.json()["detail"]


def test_a_full_batch_is_not_too_large_a_body(client):
    layers = [{"operator": "lstm", "hyperparameters": {"hidden": 1 + n, "batch": 8}} for n in range(1000)]
    body = json.dumps({"problems": layers})
    assert len(body) > 2**16
    answers = ask(client, problems=layers)
    assert len(answers) == 1000
    too_large = client.post(
        "/v1/choices:batch", content=body.ljust(2**20 + 1), headers={"content-type": "application/json"}
    )
    assert too_large.status_code == 413
