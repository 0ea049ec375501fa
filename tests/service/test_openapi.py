"""The OpenAPI document is complete, current, and its examples are what the service says."""

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from kernel_selector.kernels import registry
from kernel_selector.service import tokens
from kernel_selector.service.app import create_app
from kernel_selector.service.openapi.__main__ import text
from selector import Selector

ROOT = Path(__file__).parents[2]
DOCUMENT = json.loads(text())
OPERATIONS = [
    (method, path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
CHOOSE = DOCUMENT["paths"]["/v1/choices"]["post"]
QUESTIONS = CHOOSE["requestBody"]["content"]["application/json"]["examples"]
PROBLEMS = [
    pytest.param(int(status), example, id=f"{status}-{name}")
    for status, response in CHOOSE["responses"].items()
    if int(status) >= 400
    for name, example in response["content"]["application/problem+json"].get("examples", {}).items()
]


def test_the_committed_document_is_current():
    assert (ROOT / "docs" / "openapi.json").read_text() == text(), (
        "run: python -m kernel_selector.service.openapi > docs/openapi.json"
    )


def test_the_app_serves_it(client):
    assert client.get("/openapi.json").json() == DOCUMENT


def test_every_operation_is_described():
    identifiers = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(set(identifiers)) == len(identifiers)
    known = {tag["name"] for tag in DOCUMENT["tags"]}
    for _, _, operation in OPERATIONS:
        assert set(operation["tags"]) <= known
        assert operation["summary"]
        assert operation["description"]


def test_every_field_of_an_answer_has_a_type_and_numbers_their_unit():
    words = {"_ms": "milliseconds", "_bytes": "bytes"}
    for name in ("ChoiceDocument", "Candidate"):
        for field, schema in DOCUMENT["components"]["schemas"][name]["properties"].items():
            for suffix, word in words.items():
                if field.endswith(suffix):
                    assert word in schema["description"], field


def test_every_error_is_a_problem_document():
    for _, path, operation in OPERATIONS:
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"], path
    assert not {"HTTPValidationError", "ValidationError"} & DOCUMENT["components"]["schemas"].keys()
    assert CHOOSE["responses"].keys() >= {"200", "400", "409", "413", "415", "422", "500", "503"}


def test_every_reference_leads_somewhere():
    text = json.dumps(DOCUMENT)
    for part in text.split('"$ref": "')[1:]:
        name = part.split('"')[0].removeprefix("#/components/schemas/")
        assert name in DOCUMENT["components"]["schemas"]


@pytest.mark.parametrize("path", ["/v1/throughputs", "/v1/placements"])
def test_other_formats_are_documented_beside_ours(path):
    content = DOCUMENT["paths"][path]["post"]["responses"]["200"]["content"]
    assert "text/csv" in content or "text/plain" in content
    schema = content["application/json"]["schema"]
    assert list(schema) == ["anyOf"]


def test_hyperparameters_are_those_of_the_operators():
    schema = DOCUMENT["components"]["schemas"]["Hyperparameters"]
    for name in ("ChooseRequest", "Layer"):
        fields = DOCUMENT["components"]["schemas"][name]["properties"]
        assert fields["hyperparameters"]["$ref"].endswith("/Hyperparameters")
    by_name = {kind["title"]: kind for kind in schema["anyOf"]}
    assert by_name.keys() == registry.operators().keys()
    for name, operator in registry.operators().items():
        assert list(by_name[name]["properties"]) == [spec.name for spec in operator.hyperparameters]
    assert by_name["lstm"]["required"] == ["hidden", "batch"]
    assert by_name["lstm"]["properties"]["hidden"]["maximum"] == 65536


@pytest.mark.parametrize("name", QUESTIONS)
def test_examples_of_questions_are_answered(client, name):
    response = client.post("/v1/choices", json=QUESTIONS[name]["value"])
    assert response.status_code == 200, response.text
    left_out = set() if "regime" in QUESTIONS[name]["value"] else {"regime"}  # earlier clients do not know it
    fields = DOCUMENT["components"]["schemas"]["ChoiceDocument"]["properties"].keys()
    assert response.json().keys() == fields - left_out


@pytest.mark.parametrize(
    ("path", "example", "status"),
    [
        pytest.param(
            path,
            example["value"],
            example.get("x-status", 202 if "202" in operation["responses"] else 200),
            id=f"{path} {name}",
        )
        for method, path, operation in OPERATIONS
        if method == "post"
        for content in operation["requestBody"]["content"].values()
        for name, example in content["examples"].items()
    ],
)
def test_every_example_of_a_request_is_answered(writer, path, example, status):
    if isinstance(example, str):
        response = writer.post(path, content=example, headers={"content-type": "application/x-ndjson"})
    else:
        response = writer.post(path, json=example)
    assert response.status_code == status, response.text


def test_every_page_that_needs_nothing_is_answered_as_documented(writer):
    for method, path, operation in OPERATIONS:
        if method == "get" and "{" not in path:
            response = writer.get(path)
            expected = 503 if path == "/readyz" else 200
            assert response.status_code in (200, expected), path
            assert "200" in operation["responses"]


def test_what_needs_a_token_says_so(writer):
    del writer.headers["authorization"]
    for method, path, operation in OPERATIONS:
        needed = operation.get("security", [{}])
        if {} not in needed:
            answer = writer.request(method, path)
            assert answer.status_code == 401
            assert needed[0]["token"][0] in ("measure", "admin")


@pytest.fixture
def writer(empty_database):
    """A client of a service that it may change, with a token for everything."""
    secret = tokens.create_token(empty_database, "all", scopes=tokens.SCOPES)
    selector = Selector(empty_database)
    headers = {"authorization": f"Bearer {secret}"}
    with TestClient(create_app(selector), base_url="http://127.0.0.1", headers=headers) as started:
        yield started
    selector.close()


def test_every_json_body_has_an_example():
    for method, path, operation in OPERATIONS:
        content = operation.get("requestBody", {}).get("content", {})
        assert method == "get" or all(kind.get("examples") for kind in content.values()), path


def test_the_example_of_an_answer_has_its_fields(client):
    example = CHOOSE["responses"]["200"]["content"]["application/json"]["example"]
    answer = client.post("/v1/choices", json=QUESTIONS["limited"]["value"]).json()
    assert example.keys() == answer.keys()
    assert example["problem"] == answer["problem"]
    for name, value in answer.items():
        assert type(example[name]) is type(value) or None in (example[name], value), name


@pytest.mark.parametrize(("status", "example"), PROBLEMS)
def test_examples_of_problems_are_what_the_service_says(client, status, example):
    body = example["x-request"]
    content = body if isinstance(body, str) else json.dumps(body)
    headers = {"content-type": example.get("x-content-type", "application/json")}
    response = client.post("/v1/choices", content=content, headers=headers)
    assert response.status_code == status
    said, documented = response.json(), dict(example["value"])
    if status == 409:  # what is measured differs from machine to machine
        least = "the least is"
        assert said.pop("detail").split(least)[0] == documented.pop("detail").split(least)[0]
    assert said == documented


def test_every_status_of_a_wrong_question_has_an_example():
    documented = {param.values[0] for param in PROBLEMS}
    assert documented == {400, 409, 415, 422}
