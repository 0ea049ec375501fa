"""docs/review.md is true: its corrections over HTTP have the answers that are printed, in their order."""

import json
import re
import shlex
from pathlib import Path

import pytest

from kernel_selector.service import tokens
from tests.service.test_rest_measurements import (  # noqa: F401 - fixtures
    client,
    database,
    made,
    receipt,
    scaled,
    send,
)

TEXT = (Path(__file__).parents[2] / "docs" / "review.md").read_text()
CORRECTIONS = re.findall(r"^\$ (curl -s \$SERVICE/v1/measurements:.*)\n(\{.*\})$", TEXT, re.MULTILINE)


@pytest.fixture
def found(client, database, made):  # noqa: F811
    """A client of the service as the walk through finds it: worker-9 was first, and worker-7 is set aside."""
    secret = tokens.create_token(database, "worker-9", scopes=["measure"])
    tokens.create_token(database, "ops", scopes=["admin"])
    wrong, *others = (record for record in made if record.problem.hidden == 256)
    sent = send(client, [scaled(wrong, 1 / 10), *others[:2]], authorization=f"Bearer {secret}")
    assert sent.json()["added"] == 3
    more = [record for record in made if record.problem.hidden == 64][:2]
    (aside,) = receipt(client, [wrong, *more])["quarantined"]
    assert "where the median of 1 record is" in aside["detail"]
    tokens.revoke_token(database, "worker-9")
    return client


def test_corrections_have_the_answers_that_are_printed(found):
    verbs = []
    for command, printed in CORRECTIONS:
        url, *options = shlex.split(command)[2:]
        given = dict(zip(options[::2], options[1::2], strict=True))
        path = url.removeprefix("$SERVICE")
        answer = found.post(path, content=given["-d"], headers={"content-type": "application/json"})
        assert answer.status_code == 200, answer.text
        assert answer.json() == json.loads(printed)
        verbs.append(path.rpartition(":")[2])
    assert verbs == ["retract", "release", "undo"]
