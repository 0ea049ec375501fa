"""Every wrong request gets one problem document: the right status, the value named, nothing leaked."""

import json

import pytest
from starlette.testclient import TestClient

from kernel_selector.kernels.contract import SelectorError, UnknownOperator
from kernel_selector.service import problem_details as problems
from kernel_selector.service.app import create_app
from kernel_selector.service.settings import Settings

SIZES = {"hidden": 64, "batch": 8}
URN = "urn:kernel-selector:problem:"


def assert_problem(response, status, slug, *words):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-request-id"]
    document = response.json()
    assert document["status"] == status
    assert document["type"] == URN + slug
    assert document["title"]
    for word in words:
        assert word in document["detail"]
    return document


def ask(client, **body):
    return client.post("/v1/choices", json={"hyperparameters": SIZES, **body})


def send(client, body, content_type="application/json"):
    headers = {"content-type": content_type} if content_type else {}
    return client.post("/v1/choices", content=body, headers=headers)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "hidden=0"),
        (-1, "hidden=-1"),
        (1.5, "hidden=1.5"),
        (64.0, "hidden=64.0"),
        ("512", "hidden='512'"),
        (True, "hidden=True"),
        (None, "hidden=None"),
        (10**12, "hidden=1000000000000"),
        (10**4000, "hidden=1000"),
        (1e308, "hidden=1e+308"),
    ],
)
def test_a_size_that_is_no_size(client, value, shown):
    response = ask(client, hyperparameters={"hidden": value, "batch": 8})
    document = assert_problem(
        response, 422, "invalid-hyperparameter", shown, "expected a whole number from 1"
    )
    assert len(document["detail"]) < 1100


@pytest.mark.parametrize(
    ("hyperparameters", "slug", "words"),
    [
        ({"hiden": 64, "batch": 8}, "unknown-hyperparameter", ["'hiden'", "Did you mean 'hidden'"]),
        ({"hidden": 64}, "invalid-hyperparameter", ["needs batch"]),
        ({"hidden": 64, "hidden_size": 65, "batch": 8}, "ambiguous-hyperparameter", ["64", "65"]),
        ({**SIZES, "dtype": "float31"}, "invalid-hyperparameter", ["float31", "float32"]),
        ({**SIZES, "bias": 1}, "invalid-hyperparameter", ["bias=1", "True or False"]),
        ({**SIZES, "dtype": "x" * 201}, "invalid-request", ["at most 200 characters"]),
        ({**SIZES, "dtype": "\x00"}, "invalid-request", ["printable"]),
        ({"hidden": [64], "batch": 8}, "invalid-request", ["hyperparameters.hidden=[64]"]),
        ({"hidden": {"a": {}}, "batch": 8}, "invalid-request", ["expected a number"]),
        ({"": 1}, "invalid-request", ["at least 1 character"]),
        ({str(i): i for i in range(65)}, "invalid-request", ["64"]),
        ({}, "invalid-hyperparameter", ["needs hidden"]),
        ([1], "invalid-request", ["hyperparameters=[1]"]),
        (None, "invalid-request", ["hyperparameters=None"]),
    ],
)
def test_wrong_hyperparameters(client, hyperparameters, slug, words):
    assert_problem(ask(client, hyperparameters=hyperparameters), 422, slug, *words)


@pytest.mark.parametrize(
    "name", ["operator", "device", "memory", "objective", "override", "among", "regime", "database", "self"]
)
def test_hyperparameters_reach_no_other_argument(client, name):
    response = ask(client, hyperparameters={**SIZES, name: "sqlite:////etc/passwd"})
    slug = "unknown-hyperparameter" if name == "self" else "invalid-request"
    assert_problem(response, 422, slug, name)


@pytest.mark.parametrize(
    ("field", "value", "slug"),
    [
        ("operator", "lstmm", "unknown-operator"),
        ("operator", 1, "invalid-request"),
        ("operator", "", "invalid-request"),
        ("device", "h2000", "unknown-device"),
        ("device", "cuda:99", "unknown-device"),
        ("device", {"name": "x"}, "invalid-request"),
        ("device", "\n", "invalid-request"),
        ("device", "x" * 201, "invalid-request"),
        ("memory", 0, "invalid-request"),
        ("memory", -5, "invalid-request"),
        ("memory", True, "invalid-request"),
        ("memory", 1.5, "invalid-request"),
        ("memory", "1 parsec", "invalid-request"),
        ("memory", "9" * 200, None),
        ("memory", [], "invalid-request"),
        ("objective", "fast", "invalid-request"),
        ("objective", None, "invalid-request"),
        ("override", "nonesuch", "unknown-implementation"),
        ("override", 3, "invalid-request"),
        ("among", "torch_lstm", "invalid-request"),
        ("among", [], "invalid-request"),
        ("regime", "graph", "invalid-request"),
        ("regime", None, "invalid-request"),
        ("hidden", 64, "invalid-request"),
    ],
)
def test_wrong_fields(client, field, value, slug):
    response = ask(client, **{field: value})
    if slug is None:
        assert response.status_code == 200  # a limit beyond all memory limits nothing
        return
    document = assert_problem(response, 422, slug, field if slug == "invalid-request" else str(value))
    if "errors" in document:
        assert document["errors"][0]["pointer"] == f"#/{field}"


def test_wrong_names_to_choose_from(client):
    assert_problem(ask(client, among=["nonesuch"]), 422, "unknown-implementation", "'nonesuch'", "torch_lstm")
    document = assert_problem(ask(client, among=["hoisted", 3]), 422, "invalid-request", "among")
    assert document["errors"][0]["pointer"] == "#/among/1"


def test_a_misplaced_hyperparameter_is_told_where_it_belongs(client):
    response = client.post("/v1/choices", json=SIZES)
    document = assert_problem(response, 422, "invalid-request", "inside 'hyperparameters'")
    assert [error["pointer"] for error in document["errors"]] == ["#/hyperparameters", "#/hidden", "#/batch"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not JSON"),
        (b"hidden=64", "not JSON"),
        (b'{"hyperparameters": {"hidden": NaN}}', "NaN"),
        (b'{"memory": -Infinity}', "-Infinity"),
        (b'{"hyperparameters": {"hidden": 1, "hidden": 2}}', "'hidden' is given twice"),
        (b"[" * 5000, "nested"),
        (b'{"hyperparameters":' * 2000, "nested"),
        (b'{"memory": ' + b"9" * 5000 + b"}", "digits"),
        (b'\xff{"a": 1}', "UTF-8"),
        ('{"device": "é"}'.encode("latin-1"), "UTF-8"),
        ("{}".encode("utf-16"), "UTF-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"{} {}", "Extra data"),
    ],
)
def test_bodies_that_are_not_json(client, body, words):
    assert_problem(send(client, body), 400, "malformed-json", words)


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"1", b'"x"', b"[" * 900 + b"]" * 900])
def test_json_that_is_no_question(client, body):
    assert_problem(send(client, body), 422, "invalid-request", "the body")


@pytest.mark.parametrize(
    "escaped", [r'{"hidden": "\ud800"}', r'{"\ud800": 1}', r'{"hidden": 1, "a\u0000": 1}']
)
def test_text_that_is_no_text(client, escaped):
    response = send(client, f'{{"hyperparameters": {escaped}}}'.encode())
    assert_problem(response, 422, "invalid-request")


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/x-www-form-urlencoded", "junk", "a/b/c"]
)
def test_bodies_not_announced_as_json(client, content_type):
    response = send(client, json.dumps({"hyperparameters": SIZES}), content_type)
    assert_problem(response, 415, "unsupported-media-type", "application/json")


def test_a_charset_is_no_other_type(client):
    body = json.dumps({"hyperparameters": SIZES})
    assert send(client, body, "application/json; charset=utf-8").status_code == 200


def test_a_body_that_is_too_large(client):
    limit = Settings().max_body_bytes
    body = json.dumps({"hyperparameters": SIZES})
    assert send(client, body.ljust(limit)).status_code == 200
    assert_problem(send(client, body.ljust(limit + 1)), 413, "body-too-large", str(limit))


def test_a_chunked_body_that_is_too_large(client):
    sent = []

    def chunks():
        for _ in range(1000):
            sent.append(1024)
            yield b" " * 1024

    assert_problem(send(client, chunks()), 413, "body-too-large")


@pytest.mark.parametrize("declared", ["65537", "9" * 18, "9" * 5000])
def test_a_declared_length_is_believed(client, declared):
    headers = {"content-type": "application/json", "content-length": declared}
    assert_problem(client.post("/v1/choices", content=b"{}", headers=headers), 413, "body-too-large")


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/choices/", "/v1/nope", "/%0a%00", "/v1/operators/a/b", "/v1/operators/%00"]
)
def test_paths_that_are_not_there(client, path):
    document = assert_problem(client.get(path, follow_redirects=False), 404, "not-found", "/openapi.json")
    assert "\n" not in document["instance"]


@pytest.mark.parametrize("name", ["lstmm", "LSTM", "%2e%2e", "x" * 5000, "%20", "%ff"])
def test_operators_that_are_not_there(client, name):
    assert_problem(client.get(f"/v1/operators/{name}"), 404, "unknown-operator", "lstm")


def test_a_method_that_is_not_allowed(client):
    response = client.get("/v1/choices")
    assert_problem(response, 405, "method-not-allowed", "GET")
    assert response.headers["allow"] == "POST"


def test_all_methods_of_a_path_are_allowed(client):
    response = client.options("/v1/measurements")
    assert_problem(response, 405, "method-not-allowed")
    assert response.headers["allow"] == "GET, HEAD, POST"
    assert client.post("/v1/operators/lstm").headers["allow"] == "GET, HEAD"
    assert client.put("/v1/profiling-jobs/5").headers["allow"] == "DELETE, GET, HEAD"


class Failing:
    """A selector that always raises one error."""

    def __init__(self, error):
        self.error = error

    def answers_at_once(self, *_):
        return True

    def choose(self, *_, **__):
        raise self.error

    def close(self):
        """Nothing to close."""

    operators = devices = status = answer = choose


@pytest.fixture
def failing():
    """A function: the client of a service whose selector raises an error."""

    def client(error):
        app = create_app(Failing(UnknownOperator("nothing to warm up")))
        with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as started:
            app.state.selector.error = error
            return started

    return client


def test_a_fault_of_ours_says_nothing_of_its_cause(failing, caplog):
    response = ask(failing(RuntimeError("password=hunter2 in /srv/secret")))
    document = assert_problem(response, 500, "internal-error", response.headers["x-request-id"])
    assert "hunter2" not in response.text
    assert "RuntimeError" not in response.text
    assert document["instance"] == "/v1/choices"
    assert response.headers["x-request-id"] in caplog.text


def every_error():
    import kernel_selector.db.errors
    import selector.errors

    assert kernel_selector.db.errors
    assert selector.errors
    waiting, found = [SelectorError], []
    while waiting:
        error = waiting.pop()
        if error.__module__.startswith(("kernel_selector.", "selector.")):
            found.append(error)
            waiting += error.__subclasses__()
    return sorted(set(found), key=lambda error: error.__name__)


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.__name__)
def test_every_error_of_ours_has_its_answer(failing, error):
    kind = problems.kind_of(error("hidden=0: give more."))
    assert kind.status in (404, 409, 422, 503)
    slug = kind.type.removeprefix(URN)
    document = assert_problem(ask(failing(error("hidden=0: give more."))), kind.status, slug)
    about_database = slug == "database-unavailable"
    assert document["detail"] == (
        problems.reason(error.__name__) if about_database else "hidden=0: give more."
    )


@pytest.mark.parametrize("name", ["DatabaseMissing", "DatabaseCorrupt", "DatabaseRevision", "DatabaseLocked"])
def test_errors_of_the_database_are_the_services_own(failing, name):
    error = next(known for known in every_error() if known.__name__ == name)
    answer = ask(failing(error("/x: run selector quickstart")))
    assert_problem(answer, 503, "database-unavailable", problems.reason(name))
    assert "/x" not in answer.text
