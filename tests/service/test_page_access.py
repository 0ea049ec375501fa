"""Who may see the page: as all reading, but a browser gives the token as the password of HTTP Basic."""

from base64 import b64encode

import pytest

from kernel_selector.service import tokens
from tests.service.test_rest_access import FROM_AFAR, database, headers, service, status

__all__ = ["database", "service"]  # fixtures


def basic(secret, user="anyone"):
    return {"authorization": f"Basic {b64encode(f'{user}:{secret}'.encode()).decode()}"}


def test_a_browser_gives_the_token_as_a_password(service, database):
    client = service()
    refused = client.get("/")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith('Basic realm="')
    secret = tokens.create_token(database, "person")
    for given in (basic(secret), basic(secret, user=""), headers(secret)):
        assert client.get("/", headers=given).status_code == 200
    for path in ("/page/style.css", "/page/icon.svg"):
        assert status(client, path=path) == 200


def test_and_nowhere_else(service, database):
    """What a browser sends by itself must not write, nor read what other pages could make of it."""
    client = service()
    secret = tokens.create_token(database, "all", scopes=tokens.SCOPES)
    for method, path in (
        ("GET", "/v1/operators"),
        ("GET", "/v1/quarantine"),
        ("POST", "/v1/measurements"),
        ("POST", "/v1/choices"),
        ("GET", "//"),
    ):
        answer = client.request(method, f"{FROM_AFAR}{path}", headers=basic(secret))
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"


def test_over_the_loopback_interface_it_is_free(service):
    assert service("http://127.0.0.1").get("/").status_code == 200
    assert service("http://127.0.0.1", tokens="required").get("/").status_code == 401
    assert service("http://127.0.0.1").get("/", headers={"host": "attacker.example"}).status_code == 401


def test_scope_and_rate_are_those_of_the_token(service, database):
    measurer = tokens.create_token(database, "measurer", scopes=["measure"])
    reader = tokens.create_token(database, "reader")
    client = service(requests_per_s=0.001)
    assert client.get("/", headers=basic(measurer)).status_code == 403
    found = [client.get("/", headers=basic(reader)).status_code for _ in range(2)]
    assert found == [200, 429]


@pytest.mark.parametrize(
    "credentials",
    ["", "Basic", "Basic ", "Basic %%%", "Basic a", "Basic 8J+Y", "Basic Og==", "Basic " + "QQ" * 9999],
)
def test_what_is_no_password_is_refused(service, credentials):
    answer = service("http://127.0.0.1").get("/", headers={"authorization": credentials})
    assert answer.status_code == 401


def test_a_wrong_password_is_refused(service, database):
    secret = tokens.create_token(database, "person")
    tokens.revoke_token(database, "person")
    for given in (secret, tokens.new_secret(), "x"):
        assert service().get("/", headers=basic(given)).status_code == 401
