"""docs/rest.md is true: its commands are run, its tables compared with the code."""

import json
import re
import shlex
from pathlib import Path

import pytest

from kernel_selector.service import problem_details as problems
from kernel_selector.service.schemas.choices import ChoiceDocument, ChooseRequest
from kernel_selector.service.settings import PREFIX, Settings

TEXT = (Path(__file__).parents[2] / "docs" / "rest.md").read_text()
SESSIONS = re.findall(r"^```console\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
# each command with what it printed, up to the next command
COMMANDS = [
    tuple(part.split("\n", 1))
    for session in SESSIONS
    for part in re.split(r"^\$ ", session, flags=re.MULTILINE)
    if part
]


def run(client, command):
    """What curl would get: the answer, and the names that jq would pick from it, if any."""
    curl, _, jq = command.partition(" | jq ")
    words = shlex.split(curl)
    assert words[:2] == ["curl", "-s"]
    path = words[2].removeprefix("http://127.0.0.1:8000")
    options = dict(zip(words[3::2], words[4::2], strict=True))
    if "-d" not in options:
        return client.get(path), ()
    name, value = options["-H"].split(": ")
    picked = re.findall(r"\w+", jq)
    return client.post(path, content=options["-d"], headers={name: value}), picked


@pytest.mark.parametrize(("command", "printed"), COMMANDS, ids=range(len(COMMANDS)))
def test_commands_do_what_is_printed(client, command, printed):
    response, picked = run(client, command)
    documented = json.loads(printed)
    answer = response.json()
    if picked:
        assert list(documented) == picked
        for name in picked:  # figures are those of the machine that the page was written on
            assert type(answer[name]) is type(documented[name]), name
        assert response.status_code == 200
    else:
        for document in (answer, documented):  # the list of what is known grows
            document["detail"] = document["detail"].split("Known:")[0]
        assert answer == documented


def test_there_are_commands():
    assert len(COMMANDS) >= 4


def test_every_kind_of_problem_is_listed():
    others = problems.NOT_READY, problems.INTERNAL, problems.ENDING
    kinds = {*problems.KINDS.values(), *problems.BY_STATUS.values(), *others}
    listed = set(re.findall(r"^\| (\d{3}) \| `([a-z-]+)` \|", TEXT, re.MULTILINE))
    assert listed == {(str(kind.status), kind.slug) for kind in kinds}


def test_every_path_is_listed(client):
    for path in client.get("/openapi.json").json()["paths"]:
        assert f"{path}`" in TEXT


def test_every_field_of_a_question_is_listed():
    assert set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)) >= ChooseRequest.model_fields.keys()


def test_every_setting_is_listed_with_its_default():
    for name, field in Settings.model_fields.items():
        default = str(field.default).lower()
        assert f"| `{PREFIX}{name.upper()}` | {default} | {field.description} |" in TEXT


def test_fields_of_answers_exist():
    for name in ("problem", "assumed", "operator_assumed", "source", "candidates", "caveats"):
        assert name in ChoiceDocument.model_fields
        assert name in TEXT


def test_it_is_short():
    assert len(TEXT.splitlines()) < 220
