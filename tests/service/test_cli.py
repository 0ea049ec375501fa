"""The command line: what each command prints, as text and as JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from kernel_selector.service.cli import main
from kernel_selector.service.cli.application import app

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(command.name for command in app.registered_commands)
PROMISED = [
    "audit",
    "calibrate",
    "choose",
    "config",
    "devices",
    "diff",
    "doctor",
    "evaluate",
    "explain",
    "export",
    "extender",
    "fits",
    "import",
    "inspect",
    "merge",
    "operators",
    "plan",
    "profile",
    "promote",
    "quickstart",
    "refresh",
    "serve",
    "status",
    "train",
    "worker",
]
NESTED = [
    "database status",
    "database upgrade",
    *(f"token {verb}" for verb in ("create", "rotate", "revoke", "trust", "distrust", "list")),
    *(f"measurements {verb}" for verb in ("retract", "release", "undo", "quarantined", "waiting")),
]
QUESTION = ["lstm", "hidden=256", "batch=32", "--device", "cpu"]


def document(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    """The one JSON document of a command that succeeds."""
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_promised_commands_are_there() -> None:
    assert COMMANDS == PROMISED


@pytest.mark.parametrize("command", [*COMMANDS, *NESTED])
def test_every_command_has_help_with_examples_and_json(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--help"]) == 0
    help_text = capsys.readouterr().out
    assert "Examples:" in help_text
    examples = help_text.split("Examples:")[1].splitlines()
    assert any(line.strip().startswith(f"selector {command}") for line in examples)  # a line of its own
    assert "--json" in help_text


def test_help_is_fast_because_nothing_heavy_is_imported() -> None:
    heavy = "{'torch', 'numpy', 'sklearn', 'sqlalchemy', 'fastapi', 'uvicorn', 'selector'}"
    code = f"import sys, kernel_selector.service.cli; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_choose_as_json(capsys: pytest.CaptureFixture[str], database_file: Path) -> None:
    choice = document(capsys, "choose", *QUESTION, "--memory", "1GiB", "--database", database_file)
    assert choice["source"] == "exact"
    assert choice["problem"]["hidden"] == 256
    assert "seq" in choice["assumed"]
    assert choice["memory_limit_bytes"] == 2**30
    assert not choice["operator_assumed"]


def test_choose_without_an_operator_means_lstm_and_says_so(
    capsys: pytest.CaptureFixture[str], database_file: Path
) -> None:
    choice = document(capsys, "choose", *QUESTION[1:], "--database", database_file)
    assert choice["operator_assumed"]
    assert choice["problem"]["operator"] == "lstm"


def test_choose_as_text_names_the_choice_and_the_code_to_build_it(
    capsys: pytest.CaptureFixture[str], database_file: Path
) -> None:
    assert main(["choose", *QUESTION, "--database", str(database_file)]) == 0
    text = capsys.readouterr().out
    chosen = document(capsys, "choose", *QUESTION, "--database", database_file)["implementation"]
    assert chosen in text
    assert re.search(r"rests on +\d+ own measurements of this problem", text)
    where = f"device='cpu', database={str(database_file)!r}"
    assert f"selector.choose('lstm', hidden=256, batch=32, {where}).build()" in text


def test_override_and_objective_reach_the_selector(
    capsys: pytest.CaptureFixture[str], database_file: Path
) -> None:
    choice = document(
        capsys,
        "choose",
        *QUESTION,
        "--override",
        "unfused",
        "--objective",
        "memory",
        "--database",
        database_file,
    )
    assert (choice["implementation"], choice["source"], choice["objective"]) == (
        "unfused",
        "override",
        "memory",
    )


def test_the_regime_reaches_the_selector(capsys: pytest.CaptureFixture[str], database_file: Path) -> None:
    asked = [*QUESTION, "--regime", "compiled", "--database", str(database_file)]
    assert document(capsys, "choose", *asked)["regime"] == "compiled"
    assert "regime" not in document(capsys, "choose", *asked, "--regime", "launched")
    assert main(["choose", *asked]) == 0
    assert ", regime='compiled', database=" in capsys.readouterr().out
    assert main(["explain", *asked]) == 0
    assert re.search(r"^Regime      compiled with neighbours$", capsys.readouterr().out, re.MULTILINE)


def test_explain(capsys: pytest.CaptureFixture[str], database_file: Path) -> None:
    assert main(["explain", *QUESTION, "--database", str(database_file)]) == 0
    text = capsys.readouterr().out
    explained = document(capsys, "explain", *QUESTION, "--database", database_file)
    assert explained["explanation"] == text.rstrip("\n")
    assert "Because" in text
    assert re.search(r"^Rests on    \d+ own measurements of this problem$", text, re.MULTILINE)


def test_operators_lists_one_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert [one["name"] for one in document(capsys, "operators", "gru")["operators"]] == ["gru"]
    assert main(["operators", "gru"]) == 0
    text = capsys.readouterr().out
    assert "torch_gru" in text
    assert "torch_lstm" not in text
    assert main(["operators", "lstn"]) == 2
    assert "Unknown operator 'lstn'. Did you mean 'lstm'?" in capsys.readouterr().err


def test_operators_lists_hyperparameters_and_implementations(capsys: pytest.CaptureFixture[str]) -> None:
    lstm = next(one for one in document(capsys, "operators")["operators"] if one["name"] == "lstm")
    assert {"hidden", "batch"} <= {spec["name"] for spec in lstm["hyperparameters"]}
    assert [one["name"] for one in lstm["implementations"] if one["default"]] == ["torch_lstm"]
    assert main(["operators"]) == 0
    assert "same as hidden" in capsys.readouterr().out


def test_devices_lists_this_machine_and_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "devices")
    assert "cpu" in {device["torch_device"] for device in found["here"]}
    assert "nvidia-h200" in {device["key"] for device in found["known"]}
    assert main(["devices"]) == 0
    assert "nvidia-h200" in capsys.readouterr().out


def test_database_status_and_upgrade(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite"
    assert document(capsys, "database", "upgrade", "--database", path)["location"] == str(path)
    status = document(capsys, "database", "status", "--database", path)
    assert (status["records"], status["models"]) == (0, [])


def test_database_status_counts_records(capsys: pytest.CaptureFixture[str], database_file: Path) -> None:
    status = document(capsys, "database", "status", "--database", database_file)
    assert status["counts"][0]["count"] == status["records"] > 0
    assert main(["database", "status", "--database", str(database_file)]) == 0
    assert "lstm" in capsys.readouterr().out


@pytest.mark.usefixtures("elsewhere")
def test_doctor_is_content_with_a_good_database(
    capsys: pytest.CaptureFixture[str], database_file: Path
) -> None:
    found = {one["name"]: one for one in document(capsys, "doctor", "--database", database_file)["findings"]}
    assert {"python", "torch", "device", "database", "model", "packages"} <= set(found)
    assert found["model"]["advice"] == "Run: selector quickstart"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the checkout, whose kernels/ hides Hugging Face's package of that name."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("elsewhere")
def test_doctor_reports_what_is_broken_and_exits_with_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "corrupt.sqlite"
    path.write_text("no database")
    assert main(["doctor", "--database", str(path), "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)
    assert not findings["healthy"]
    assert [one["name"] for one in findings["findings"] if one["status"] == "broken"] == ["database"]


@pytest.mark.usefixtures("quick_learner")
def test_profile_train_and_evaluate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    database = ["--database", str(tmp_path / "new.sqlite")]
    grid = ["lstm", "hidden=4,6,9,12,16", "batch=1,2,3", "seq=2", "mode=inference", "--device", "cpu"]
    assert document(capsys, "profile", *grid, *database)["measured"] == 15
    assert document(capsys, "profile", *grid, *database)["skipped"] == 15
    assert document(capsys, "train", *database)["problems"] == 15
    assert main(["evaluate", "--report", str(tmp_path / "report"), *database]) == 0
    assert "Held out" in capsys.readouterr().out
    assert "Held out" in (tmp_path / "report/report.md").read_text()


def test_results_go_to_stdout_and_progress_to_stderr(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["lstm", "hidden=4", "batch=1", "seq=2", "mode=inference", "--device", "cpu", "--json"]
    assert main(["profile", *arguments, "--database", str(tmp_path / "new.sqlite")]) == 0
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert "1 problem measured" in captured.err


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m kernel_selector.service.cli operators | head -1; echo ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Traceback" not in run.stderr
    assert "Error" not in run.stderr


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("4m", 240), ("20min", 1200), ("1.5h", 5400)]
)
def test_time_spans(text: str, seconds: float) -> None:
    from kernel_selector.service.cli.terminal import words

    assert words.seconds(text) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-:--"), (7.4, "0:07"), (185, "3:05"), (3720, "1:02:00")]
)
def test_time_spans_are_written_as_clocks(seconds: float | None, text: str) -> None:
    from kernel_selector.service.cli.terminal import output

    assert output.span(seconds) == text


def test_tokens_from_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = ["--database", tmp_path / "tokens.sqlite"]
    document(capsys, "database", "upgrade", *place)
    made = document(capsys, "token", "create", "worker-7", "--scope", "measure", "--days", 9, *place)
    turned = document(capsys, "token", "rotate", "worker-7", *place)
    assert made["secret"] != turned["secret"]
    assert document(capsys, "token", "revoke", "worker-7", *place)["revoked"]
    first, second = document(capsys, "token", "list", *place)["tokens"]
    assert first["scopes"] == second["scopes"] == ["measure"]
    assert not first["valid"]
    assert not second["valid"]
    assert first["expires_at"]
    assert main(["token", "revoke", "worker-7", *map(str, place)]) == 2
    assert "no valid token" in capsys.readouterr().err
    assert main(["token", "create", "a", *map(str, place)]) == 0
    assert capsys.readouterr().out.startswith("ks_")


def test_trust_in_tokens_from_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place, why = ["--database", tmp_path / "tokens.sqlite"], ["--reason", "tried"]
    document(capsys, "database", "upgrade", *place)
    document(capsys, "token", "create", "guest", "--scope", "measure", "--untrusted", *place)
    document(capsys, "token", "create", "worker-7", "--scope", "measure", *place)
    document(capsys, "token", "rotate", "guest", *place)

    def trusted() -> list[bool]:
        return [one["trusted"] for one in document(capsys, "token", "list", *place)["tokens"]]

    assert trusted() == [False, True, False]
    assert document(capsys, "token", "trust", "guest", *why, *place) == {"name": "guest", "trusted": True}
    document(capsys, "token", "revoke", "worker-7", *place)
    document(capsys, "token", "distrust", "worker-7", *why, *place)  # what it sent is still there
    assert trusted() == [True, False, True]
    assert main(["token", "create", "worker-7", *map(str, place)]) == 2
    assert "sent before is not trusted" in capsys.readouterr().err
    document(capsys, "token", "create", "worker-7", "--untrusted", *place)
    assert main(["token", "trust", "nobody", *map(str, [*why, *place])]) == 2
    assert "no token 'nobody'" in capsys.readouterr().err
    assert main(["token", "trust", "guest", "--reason", "", *map(str, place)]) == 2
    told = document(capsys, "audit", *place)["entries"]
    assert [(one["action"], one["subject"], one["reason"]) for one in told[3:6]] == [
        ("token.trust", "guest", "tried"),
        ("token.revoke", "worker-7", ""),
        ("token.distrust", "worker-7", "tried"),
    ]


def test_config_says_where_each_setting_comes_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELECTOR_SHUTDOWN_S", "3")
    found = {item["name"]: item for item in document(capsys, "config")["settings"]}
    assert (found["shutdown_s"]["value"], found["shutdown_s"]["source"]) == (3, "environment")
    assert found["tokens"]["source"] == "default"
    assert main(["config"]) == 0
    assert "SELECTOR_SHUTDOWN_S" in capsys.readouterr().out


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"kernel-selector {metadata.version('kernel-selector')}\n"
