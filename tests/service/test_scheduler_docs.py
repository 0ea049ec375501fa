"""docs/schedulers/ is true: its commands are answered, its configuration fits, and its Lua runs."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from lupa import LuaRuntime
from starlette.testclient import TestClient

from kernel_selector.db import Database, records
from kernel_selector.kernels import measure, registry
from kernel_selector.kernels.contract import Timing
from kernel_selector.kernels.devices import known_device
from kernel_selector.service.app import create_app
from kernel_selector.service.extender import PREFIX, create_extender
from kernel_selector.service.scheduling.extender_arguments import ANNOTATION
from kernel_selector.service.schemas.layers import Layer
from selector import Selector
from tests.service.conftest import measured_records

FOLDER = Path(__file__).parents[2] / "docs" / "schedulers"
README = (FOLDER / "README.md").read_text()
COMMANDS = re.findall(r"curl -s '([^']+)' -H 'Content-Type: application/json' \\\n  -d '([^']+)'", README)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A service that has measurements of the examples on two kinds of GPU."""
    path = tmp_path_factory.mktemp("gpus") / "measured.sqlite"
    with Database.open(path, create=True) as database, database.write() as connection:
        records.add(connection, list(on_gpus()))
    selector = Selector(path)
    with TestClient(create_app(selector), base_url="http://127.0.0.1") as started:
        yield started
    selector.close()


def on_gpus():
    template = next(iter(measured_records()))
    environment = measure.current_environment()
    for factor, key in enumerate(("h200", "nvidia-a100-sxm4-80gb"), start=1):
        for operator in ("lstm", "gru"):
            for batch in (16, 32, 64):
                name = registry.operator(operator).default
                time = dict.fromkeys(("p20_ms", "p50_ms", "p80_ms"), batch * factor * 1.0)
                timing = Timing(**time, samples=9)
                yield replace(
                    template,
                    problem=registry.operator(operator).problem({"hidden": 1024, "batch": batch}),
                    implementation=name,
                    implementation_version=registry.implementation(operator, name).version,
                    device=replace(known_device(key), host="a processor"),
                    environment=environment,
                    forward=timing,
                    forward_backward=timing,
                )


def ask(client, url, body):
    parts = urlsplit(url)
    headers = {"content-type": "application/json"}
    response = client.post(f"{parts.path}?{parts.query}", content=body, headers=headers)
    assert response.status_code == 200, response.text
    return parts.query.removeprefix("format="), response.text


@pytest.mark.parametrize(("url", "body"), COMMANDS, ids=[url.split("=")[1] for url, _ in COMMANDS])
def test_commands_are_answered(client, url, body):
    format, text = ask(client, url, body)
    if format == "slurm":
        assert text == "h200|a100\n"
    elif format == "sia":
        assert len(text.splitlines()) == 7
    else:
        found = json.loads(text)
        assert {
            "k8s-dra": lambda: found["kind"] == "ResourceClaimTemplate",
            "k8s-affinity": lambda: list(found) == ["nodeAffinity"],
            "ray": lambda: found["label_selector"] == {"ray.io/accelerator-type": "H200"},
            "gavel": lambda: set(found) == {"nvidia-h200", "nvidia-a100-sxm4-80gb"},
            "adaptdl": lambda: (
                found["translate"]["nvidia-h200"]["perfParams"]["beta_c"] == pytest.approx(1e-3)
            ),
        }[format]()


def test_every_format_of_a_scheduler_has_a_command():
    formats = {"k8s-dra", "k8s-affinity", "slurm", "ray", "gavel", "sia", "adaptdl"}
    assert {url.split("=")[1] for url, _ in COMMANDS} == formats


def test_every_file_is_linked():
    for path in FOLDER.iterdir():
        assert path.name == "README.md" or f"]({path.name})" in README


def test_the_schedulers_configuration_names_our_routes():
    text = (FOLDER / "kube-scheduler.yaml").read_text()
    verbs = dict(re.findall(r"(\w+)Verb: (\w+)", text))
    assert f"/{verbs['filter']}" in str(create_extender(None).routes)
    paths = {route.path for route in create_extender(None).routes}
    assert {f"{PREFIX}/{verb}" for verb in verbs.values()} <= paths
    assert verbs.keys() == {"filter", "prioritize", "preempt"}
    assert re.search(r"urlPrefix: \S+:8010" + PREFIX + r"\n", text)
    # which the scheduler has from nowhere else when it has a file
    assert re.search(r"^clientConnection:\n  kubeconfig: /", text, re.MULTILINE)


def test_probes_ask_for_routes_of_the_extender():
    text = (FOLDER / "extender.yaml").read_text()
    probes = dict(re.findall(r"(\w+)Probe:.*\n.*port: 8010, path: (\S+)}", text))
    assert probes == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/healthz"}
    assert set(probes.values()) <= {route.path for route in create_extender(None).routes}


def test_the_pods_annotation_is_a_question():
    (found,) = re.findall(rf"{ANNOTATION}: '(.*)'", (FOLDER / "pod.yaml").read_text())
    assert Layer.model_validate_json(found).operator == "lstm"


@pytest.fixture
def lua():
    """A Lua runtime in which Slurm's scripts find each other."""
    runtime = LuaRuntime(unpack_returned_tuples=True)
    load = runtime.eval("function(path) return dofile(path) end")
    shared = load(str(FOLDER / "kernel_selector.lua"))
    runtime.globals().dofile = lambda _: shared
    runtime.execute("slurm = {SUCCESS = 0}")
    for name in ("cli_filter.lua", "job_submit.lua"):
        runtime.execute((FOLDER / name).read_text())
    return runtime, shared


QUESTION = '{"operator": "gru", "hyperparameters": {"hidden": 1024, "batch": 64}}'
NASTY = """{"a": "'; touch /tmp/owned; echo '$(id) `id` \\\\ @/etc/passwd"}"""


@pytest.mark.parametrize("comment", [QUESTION, NASTY, "{'}", "{@/etc/passwd}"])
def test_a_comment_reaches_the_shell_as_one_word(lua, comment):
    _, shared = lua
    command = shared.command(comment).replace("curl", "printf '%s\\n'", 1)
    words = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    assert words.splitlines()[words.splitlines().index("--data-raw") + 1] == comment


@pytest.mark.parametrize("comment", [None, 1, "", "text", "{a}\n", "{\n}", "{" + "a" * 5000 + "}", "-d @x"])
def test_other_comments_are_none_of_ours(lua, comment):
    assert lua[1].command(comment) is None


@pytest.mark.parametrize(
    ("answer", "constraint"),
    [
        ("h200|a100\n", "h200|a100"),
        ("h200\n\n", "h200"),
        ("", None),
        ('{"type": "x"}', None),
        ("h200; rm -rf /", None),
        ("h200\nexclusive", None),
        ("h" * 201, None),
    ],
)
def test_only_constraints_are_taken_from_an_answer(lua, answer, constraint):
    assert lua[1].parsed(answer) == constraint


@pytest.mark.parametrize("given", [None, "", "(null)", "mine"])
def test_both_scripts_set_a_constraint_only_where_there_is_none(lua, given):
    runtime, shared = lua
    shared.constraint = lambda comment: "h200|a100" if comment == QUESTION else None
    expected = given if given == "mine" else "h200|a100"
    options = runtime.table_from({"comment": QUESTION, "constraint": given})
    assert runtime.globals().slurm_cli_pre_submit(options, 0) == 0
    assert options["constraint"] == expected
    job = runtime.table_from({"comment": QUESTION, "features": given})
    assert runtime.globals().slurm_job_submit(job, None, 0) == 0
    assert job["features"] == expected
    other = runtime.table_from({"comment": "hello", "features": given})
    assert runtime.globals().slurm_job_submit(other, None, 0) == 0
    assert other["features"] == given


def popen(runtime):
    """What Lua's own does; the one in the tests' runtime is switched off."""

    def run(command, _):
        text = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False).stdout
        return runtime.table_from({"read": lambda _, most: text[:most], "close": lambda _: None})

    return run


def test_a_service_that_is_away_leaves_the_job_alone(lua):
    runtime, shared = lua
    runtime.globals().io.popen = popen(runtime)
    shared.url = "http://127.0.0.1:9"
    assert shared.constraint(QUESTION) is None
    runtime.globals().io.popen = lambda *_: None
    assert shared.constraint(QUESTION) is None


def test_a_token_is_read_from_a_file(lua):
    _, shared = lua
    shared.header_file = "/etc/slurm/header"
    assert "--header '@/etc/slurm/header'" in shared.command(QUESTION)
