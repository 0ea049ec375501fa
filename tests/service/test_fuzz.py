"""Requests made up from the OpenAPI document find no fault of ours and no answer that it does not have."""

from __future__ import annotations

import pytest
import schemathesis
from schemathesis.engine import from_schema
from schemathesis.engine.events import NonFatalError, ScenarioFinished
from starlette.testclient import TestClient

from kernel_selector.db import Database, records
from kernel_selector.service import tokens
from kernel_selector.service.app import create_app
from selector import Selector
from tests.service.conftest import measured_records

SEED = 1
# their bodies may be one of many operators' hyperparameters: to go through all bounds would take minutes
QUESTIONS = r"/v1/(choices|choices:batch|throughputs|placements)$"
# what the document cannot say: which hyperparameters go with which operator
NOT_ASKED = ["positive_data_acceptance"]


@pytest.fixture
def schema(tmp_path):
    """The document of a service over a small database, and a token for everything."""
    path = tmp_path / "records.sqlite"
    with Database.open(path, create=True) as database, database.write() as connection:
        records.add(connection, measured_records())
    secret = tokens.create_token(path, "all", scopes=tokens.SCOPES)
    selector = Selector(path)
    app = create_app(selector)
    with TestClient(app, raise_server_exceptions=False):
        found = schemathesis.openapi.from_asgi("/openapi.json", app)

        @found.auth()
        class Token:
            def get(self, *_):
                return secret

            def set(self, case, data, _):
                case.headers["authorization"] = f"Bearer {data}"

        yield found
    selector.close()


@schemathesis.serializer("application/x-ndjson")
def lines(_, value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def faults(schema, phases):
    """What the checks found, each with the request that shows it."""
    schema.config.update(workers=1, continue_on_failure=True)
    schema.config.generation.update(max_examples=5, deterministic=True, no_shrink=True, database="none")
    schema.config.checks.update(excluded_check_names=NOT_ASKED)
    schema.config.phases.update(phases=phases)
    schema.config.seed = SEED
    asked, found = 0, []
    for event in from_schema(schema).execute():
        if isinstance(event, NonFatalError):
            found.append(str(event.value))
        if isinstance(event, ScenarioFinished):
            asked += len(event.recorder.cases)
            found += failed(event.recorder)
    return asked, found


def failed(recorder):
    for number, checks in recorder.checks.items():
        for check in checks:
            if check.failure_info is None or is_meant(recorder.label, check):
                continue
            seen = recorder.interactions[number]
            said = f"{seen.response.status_code} {seen.response.content[:500]!r}"
            yield f"{check.name} {check.failure_info.failure.message}\n{seen.request!r}\n{said}"


def is_meant(label, check):
    """What looks like a fault and is none: a batch answers each wrong question by itself, and like every
    HTTP service, we let unknown headers be."""
    wrong = check.name == "negative_data_rejection"
    return wrong and (label.endswith(":batch") or "in header - object" in check.failure_info.failure.message)


@pytest.mark.parametrize("phase", ["examples", "fuzzing", "stateful"])
def test_whatever_is_asked_is_answered_as_documented(schema, phase):
    asked, found = faults(schema, [phase])
    assert not found, "\n\n".join(found)
    assert asked > 10


def test_bounds_of_everything_but_questions(schema):
    asked, found = faults(schema.exclude(path_regex=QUESTIONS), ["coverage"])
    assert not found, "\n\n".join(found)
    assert asked > 500
