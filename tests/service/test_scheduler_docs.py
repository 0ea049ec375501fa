"""docs/schedulers/ is true: its commands are answered, its configuration fits, and its Lua runs."""

import json
import re
import socket
import subprocess
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

from kernel_selector.service.app import create_app
from kernel_selector.service.extender import PREFIX, create_extender
from kernel_selector.service.scheduling.extender_arguments import ANNOTATION
from kernel_selector.service.schemas.layers import Layer
from selector import Selector

FOLDER = Path(__file__).parents[2] / "docs" / "schedulers"
README = (FOLDER / "README.md").read_text()
COMMANDS = re.findall(r"curl -s '([^']+)' -H 'Content-Type: application/json' \\\n  -d '([^']+)'", README)


@pytest.fixture(scope="module")
def client(gpu_database):
    """A service that has measurements of the examples on two kinds of GPU."""
    selector = Selector(gpu_database)
    with TestClient(create_app(selector), base_url="http://127.0.0.1") as started:
        yield started
    selector.close()


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


def test_what_the_scheduler_sends_can_be_pasted(gpu_database, tmp_path):
    """The block runs in a shell, with a `curl` that writes the body and the path that it was given."""
    (block,) = re.findall(r"```bash\n(pod=.*?)```", README, re.DOTALL)
    fake = tmp_path / "curl"
    fake.write_text('#!/bin/sh\nprintf \'%s\\n\' "$2" "$6" | tr -d "\\n"; echo\n')
    fake.chmod(0o700)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    sent = subprocess.run(["sh", "-c", block], env=path, capture_output=True, text=True, check=True).stdout
    selector, answers = Selector(gpu_database), {}
    client = TestClient(create_extender(selector))
    for line in sent.splitlines():
        url, brace, rest = line.partition("{")
        answer = client.post(urlsplit(url).path, content=brace + rest)
        assert answer.status_code == 200, answer.text
        answers[url.rpartition("/")[2]] = answer.json()
    selector.close()
    assert answers.keys() == {"filter", "prioritize", "preempt"}
    assert answers["filter"]["Error"] == ""
    assert [one["metadata"]["name"] for one in answers["filter"]["Nodes"]["items"]] == [
        "node-1",
        "node-2",
        "node-3",
    ]
    assert answers["prioritize"] == [
        {"Host": "node-1", "Score": 10},
        {"Host": "node-2", "Score": 5},
        {"Host": "node-3", "Score": 5},
    ]
    assert answers["preempt"]["NodeNameToMetaVictims"].keys() == {"node-1", "node-3"}


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


@pytest.fixture(params=["lua51", "lua54"])
def lua(request, tmp_path):
    """A Lua runtime in which Slurm's scripts find each other, and the site's kinds of GPU; what they log."""
    runtime = import_module(f"lupa.{request.param}").LuaRuntime(unpack_returned_tuples=True)
    load = runtime.eval("function(path) return dofile(path) end")
    logged = []
    runtime.execute("slurm = {SUCCESS = 0}")
    runtime.globals().slurm.log_info = lambda _, text: logged.append(text)
    shared = load(str(FOLDER / "kernel_selector.lua"))
    runtime.globals().dofile = lambda _: shared
    shared.kinds_file = str(tmp_path / "kinds")
    Path(shared.kinds_file).write_text("# of this site\ngpu*: h200 A100\ngpu*: v100  # old\n")
    for name in ("cli_filter.lua", "job_submit.lua"):
        runtime.execute((FOLDER / name).read_text())
    plain = runtime.eval("function() return {gpus = {}} end")  # what a job asks for that asks for nothing
    return SimpleNamespace(runtime=runtime, shared=shared, logged=logged, plain=plain)


def site_kinds(lua, partition=None):
    """The kinds of a partition, without what its nodes have."""
    return lua.shared.kinds(partition)[0]


QUESTION = '{"operator": "gru", "hyperparameters": {"hidden": 1024, "batch": 64}}'
NASTY = """{"a": "'; touch /tmp/owned; echo '$(id) `id` \\\\ @/etc/passwd"}"""


@pytest.mark.parametrize("comment", [QUESTION, NASTY, "{'}", "{@/etc/passwd}", '{"devices": ["\'"]}'])
def test_a_comment_reaches_the_shell_as_one_word(lua, comment):
    question = lua.shared.question(comment, site_kinds(lua))
    assert question.endswith(comment[1:])
    command = lua.shared.command(question).replace("curl", "printf '%s\n'", 1)
    words = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    assert words.splitlines()[words.splitlines().index("--data-raw") + 1] == question


@pytest.mark.parametrize("comment", [None, 1, "", "text", "{a}\n", "{\n}", "{" + "a" * 5000 + "}", "-d @x"])
def test_other_comments_are_none_of_ours(lua, comment):
    assert lua.shared.question(comment, site_kinds(lua)) is None
    assert lua.shared.constraint(comment, None, lua.plain) is None
    assert lua.logged == []


@pytest.mark.parametrize(
    ("partition", "kinds"),
    [
        (None, ["h200", "a100"]),  # of the default one
        ("gpu", ["h200", "a100"]),
        ("old", ["v100"]),
        ("cpu", []),
        ("other", []),
        ("ol", []),
        ("gpu,old", []),
    ],
)
def test_a_partition_has_kinds_of_its_own(lua, partition, kinds):
    text = "gpu*: h200 gpus=4\nold: v100 # soon gone\nl4\n gpu* : a100 h200 cpus=8\ncpu:\n"
    Path(lua.shared.kinds_file).write_text(text)
    assert list(site_kinds(lua, partition).values()) == kinds


@pytest.mark.parametrize(
    ("text", "room"),
    [
        ("gpu*: h200 gpus=4 cpus=32 memory=250000 # gpus=8", {"gpus": 4, "cpus": 32, "memory": 250000}),
        ("gpu*: h200", {"gpus": 0, "cpus": 1, "memory": 0}),
        ("gpu*: h200 mygpus=4 cpus=32 gpus=many", {"gpus": 0, "cpus": 32, "memory": 0}),
        (
            "gpu*: h200 gpus=4 cpus=32\nold: v100\ngpu*: l4 gpus=1 cpus=64",
            {"gpus": 1, "cpus": 32, "memory": 0},
        ),
    ],
)
def test_the_least_that_is_said_of_a_partitions_nodes_counts(lua, text, room):
    Path(lua.shared.kinds_file).write_text(text)
    assert dict(lua.shared.kinds(None)[1]) == room


def asked(lua, **request):
    """What a job asks of its node, None for one of which no file of kinds can tell."""
    gpus = lua.runtime.table_from(request.pop("gpus", []))
    found = lua.shared.demand(lua.runtime.table_from({"gpus": gpus, **request}))
    return None if isinstance(found, tuple) else dict(found)


@pytest.mark.parametrize(
    ("wanted", "demand"),
    [
        ({}, (0, 1, 0)),
        ({"nodes": 1, "tasks": "1", "tasks_per_node": 1.0, "cpus": 8.0, "memory": 65534.0}, (0, 8, 65534)),
        ({"memory": "2G"}, (0, 1, 2048)),
        ({"memory": "1K"}, (0, 1, 1)),
        ({"memory": "0?"}, (0, 1, 0)),
        ({"gpus": ["gres:gpu:2"]}, (2, 1, 0)),
        ({"gpus": ["gres/gpu=2"], "cpus": 2}, (2, 2, 0)),
        ({"gpus": ["cpu:4,gres/gpu:1"]}, (1, 4, 0)),
        ({"gpus": ["cpu:4", "gres/gpu:1"]}, (1, 4, 0)),  # as later versions say --cpus-per-task, too
        ({"gpus": ["gres:gpu"]}, (1, 1, 0)),
        ({"gpus": ["gres:gpu:h200:1"]}, None),
        ({"gpus": ["gres:gpu:1,gres:nvme:1"]}, None),
        ({"gpus": ["gres:gpu:1", "gres:gpu:1"]}, None),
        ({"nodes": "1,3"}, None),
        ({"tasks": 2}, None),
        ({"memory": "1.5G"}, None),
        ({"other": "nodelist"}, None),
    ],
)
def test_what_a_job_asks_of_its_node(lua, wanted, demand):
    assert asked(lua, **wanted) == (demand and dict(zip(("gpus", "cpus", "memory"), demand, strict=True)))


@pytest.mark.parametrize(
    ("comment", "devices"),
    [(QUESTION, ["h200", "A100", "v100"]), ("{ }", ["h200", "A100", "v100"]), ('{"devices": ["x"]}', ["x"])],
)
def test_a_question_is_about_the_kinds_of_the_site(lua, comment, devices):
    asked = json.loads(lua.shared.question(comment, site_kinds(lua)))
    assert asked.pop("devices") == devices
    assert asked == {key: value for key, value in json.loads(comment).items() if key != "devices"}


@pytest.mark.parametrize(
    ("answer", "constraint"),
    [
        ("h200|a100\n", "h200|A100"),  # in the site's own spelling
        ("h100|a100|h200|v100\n", "A100|h200|v100"),  # and nothing that it does not have
        ("h200\n\n", "h200"),
        ("h100|l4", None),
        ("", None),
        ('{"type": "x"}', None),
        ("h200; rm -rf /", None),
        ("h200\nexclusive", None),
        ("h" * 201, None),
    ],
)
def test_only_kinds_of_the_site_are_taken_from_an_answer(lua, answer, constraint):
    found = lua.shared.parsed(answer, site_kinds(lua))
    found, reason = (found, None) if isinstance(found, str) else found
    assert found == constraint
    assert (reason is None) is (constraint is not None)


@pytest.mark.parametrize("given", [None, "", "(null)", "mine"])
def test_both_scripts_set_a_constraint_only_where_there_is_none(lua, given):
    answers = {(QUESTION, "gpu"): "h200|a100"}
    lua.shared.constraint = lambda comment, partition, _: answers.get((comment, partition))
    expected = given if given == "mine" else "h200|a100"
    names = lua.runtime.globals()
    options = lua.runtime.table_from({"comment": QUESTION, "partition": "gpu", "constraint": given})
    assert names.slurm_cli_pre_submit(options, 0) == 0
    assert options["constraint"] == expected
    job = lua.runtime.table_from({"comment": QUESTION, "partition": "gpu", "features": given})
    assert names.slurm_job_submit(job, None, 0) == 0
    assert job["features"] == expected
    other = lua.runtime.table_from({"comment": "hello", "features": given})
    assert names.slurm_job_submit(other, None, 0) == 0
    assert other["features"] == given


def popen(runtime, said=None):
    """What Lua's own does; the one in the tests' runtime is switched off. With `said`, no command runs."""

    def run(command, _):
        text = (
            said or subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False).stdout
        )
        return runtime.table_from({"read": lambda _, most: text[:most], "close": lambda _: None})

    return run


def test_a_service_that_is_away_leaves_the_job_alone(lua):
    lua.runtime.globals().io.popen = popen(lua.runtime)
    lua.shared.url = "http://127.0.0.1:9"
    assert lua.shared.constraint(QUESTION, None, lua.plain) is None
    assert "http://127.0.0.1:9 refuses connections" in lua.logged.pop()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        lua.shared.url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert lua.shared.constraint(QUESTION, None, lua.plain) is None
    assert f"{lua.shared.url} does not answer within 0.5 s" in lua.logged.pop()
    lua.runtime.globals().io.popen = lambda *_: None
    assert lua.shared.constraint(QUESTION, None, lua.plain) is None
    assert "no process can be started" in lua.logged.pop()


@pytest.mark.parametrize(
    ("said", "constraint", "logged"),
    [
        ("h200|a100|l4\n\n200", "h200|A100", None),
        ("l4\n\n200", None, "l4 suit it, and "),
        (
            '{"detail": "Unknown device \'v100x\'.", "status": 422}\n422',
            None,
            "HTTP 422: Unknown device 'v100x'.",
        ),
        ("x" * 9000 + "\n500", None, "HTTP 500: " + "x" * 300),
        ("x" * 70000 + "\n200", None, "does not answer"),
        ("h200|a100|l4\n\n200 0\n", "h200|A100", None),
        ("\n000 6\n", None, "has a name that nobody knows"),
        ("\n000 28\n", None, "does not answer within 0.5 s"),
        ("\n000 52\n", None, "has no answer: curl ends with 52"),
        (" 127\n", None, "curl is not installed"),
    ],
)
def test_what_the_service_says(lua, said, constraint, logged):
    lua.runtime.globals().io.popen = popen(lua.runtime, said)
    assert lua.shared.constraint(QUESTION, None, lua.plain) == constraint
    assert [logged in text for text in lua.logged] == ([] if logged is None else [True])


@pytest.mark.parametrize("kinds", [None, "", "# none\n"])
def test_a_site_that_names_no_kinds_is_asked_about_none(lua, kinds):
    Path(lua.shared.kinds_file).unlink()
    if kinds is not None:
        Path(lua.shared.kinds_file).write_text(kinds)
    assert lua.shared.constraint(QUESTION, None, lua.plain) is None
    assert f"{lua.shared.kinds_file} names no kind of GPU" in lua.logged.pop()


def test_an_error_of_ours_leaves_the_job_alone(lua):
    """Slurm refuses a job in whose script one is raised."""
    assert lua.shared.constraint(QUESTION, None, lua.runtime.eval("function() error('broken') end")) is None
    assert re.search("no constraint: .*broken", lua.logged.pop())


@pytest.mark.parametrize(
    ("options", "constraint"),
    [
        ({}, "h200"),
        ({"time": "1", "output": 'a ":": b', "argv": ["nodelist", "x:"]}, "h200"),
        ({"jobid": "7"}, None),  # a step of srun, for which alternatives are not allowed
        ({"spank": {"plugin": {"option": "1"}}}, None),
        ({"of-a-later-slurm": "1"}, None),
    ],
)
def test_a_client_leaves_alone_what_has_options_that_it_does_not_know(lua, options, constraint):
    lua.runtime.globals().io.popen = popen(lua.runtime, "h200\n\n200 0\n")
    text = json.dumps({"comment": QUESTION, **options}, separators=(",", ":"))
    lua.runtime.globals().slurm.json_cli_options = lambda _: text
    table = lua.runtime.table_from({"comment": QUESTION, **options})
    assert lua.runtime.globals().slurm_cli_pre_submit(table, 0) == 0
    assert table["constraint"] == constraint


UNSET = {"min_nodes": 4294967294, "num_tasks": 4294967294, "shared": 65534, "threads_per_core": 65534}


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        (UNSET, "h200"),
        (
            {**UNSET, "contiguous": 0, "ntasks_per_board": 0, "bitflags": 503316480, "core_spec": 65534},
            "h200",
        ),
        ({**UNSET, "bitflags": 503316496}, None),  # --gres-flags=enforce-binding
        ({**UNSET, "shared": 0}, None),  # --exclusive
        ({**UNSET, "core_spec": 4}, None),
        ({**UNSET, "segment_size": 2}, None),
        ({**UNSET, "min_mem_per_cpu": 65534}, None),
        ({**UNSET, "min_mem_per_node": 65534}, None),
        ({**UNSET, "pn_min_tmp_disk": 65534}, None),
        ({**UNSET, "extra": "rack=1"}, None),
    ],
)
def test_a_controller_leaves_alone_what_says_more_of_nodes(lua, fields, constraint):
    lua.runtime.globals().io.popen = popen(lua.runtime, "h200\n\n200 0\n")
    job = lua.runtime.table_from({"comment": QUESTION, **fields})
    assert lua.runtime.globals().slurm_job_submit(job, None, 0) == 0
    assert job["features"] == constraint


def test_a_token_is_read_from_a_file(lua):
    lua.shared.header_file = "/etc/slurm/header"
    assert "--header '@/etc/slurm/header'" in lua.shared.command(QUESTION)
