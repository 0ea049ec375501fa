"""What is printed fits a terminal of 80 columns, reads well, and can be typed as it stands."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import textwrap
from pathlib import Path

import pytest
from rich.console import Console

from kernel_selector.service.cli import main
from kernel_selector.service.cli.application import app
from kernel_selector.service.cli.terminal import check_table, output
from selector.profiling.quickstart import QuickstartFinished
from selector.profiling.verification import Checked
from tests.selector import replay

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(command.name for command in app.registered_commands)
DOCUMENTED = [(known.name, known.callback.__doc__) for known in app.registered_commands]
NAMED = re.compile(r"`selector (profile [^`\n]*|profile)`")


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize(
    "command", [*COMMANDS, "database status", "database upgrade", "token create", "token list"]
)
def test_help_keeps_urls_whole_and_flows(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "…" not in text
    if "--database" in text:
        assert "postgresql://user@host/name" in text
    documented = dict(DOCUMENTED).get(command, "")
    for paragraph in inspect.cleandoc(documented).split("Examples:")[0].split("\n\n"):
        for line in textwrap.wrap(paragraph, 78):
            assert f" {line} " in text


def test_the_request_in_the_help_of_serve_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    first = next(index for index, line in enumerate(lines) if line.startswith("curl"))
    words = shlex.split("\n".join(lines[first : first + 2]))
    assert words[-2] == "-d"
    assert json.loads(words[-1]) == {"hyperparameters": {"hidden": 256, "batch": 32}}


@pytest.mark.parametrize("command", ["profile", "quickstart"])
def test_measuring_again_is_in_the_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert "--again" in capsys.readouterr().out


def test_profile_commands_that_messages_name_say_what_to_measure() -> None:
    files = [
        path
        for folder in ("selector", "service", "docs")
        for path in (ROOT / folder).rglob("*.[pm][yd]")
        if path.name != "commands.md"  # which lists the commands by name
    ]
    named = [
        (path.name, words)
        for path in files
        for words in NAMED.findall(path.read_text())
        if not path.read_text().startswith(f'"""`selector {words}`')
    ]
    assert named
    assert [
        (name, words)
        for name, words in named
        if not re.search(r"--count \d|--operator \w|--model \w|--asked|--plan|hidden=|mode=|\.\.\.", words)
    ] == []


def test_a_choice_fits(
    capsys: pytest.CaptureFixture[str], database_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "SELECTOR_DATABASE_URL", str(database_file)
    )  # its path is in no line to be pasted then
    assert main(["choose", "hidden=256", "batch=32", "--device", "h200"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "assumed: you named no operator" in text


@pytest.mark.parametrize("command", [["operators"], ["config"], ["choose", "hidden=8", "batch=1"]])
def test_a_wide_terminal_pulls_no_table_apart(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(command) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def finished(count: int) -> QuickstartFinished:
    problems = list(replay.problems(hidden=(512,), batch=(128,), seq=(100,), layers=(2,)))
    rows = [
        Checked(
            problem=problems[index % 2],
            choice="hoisted" if index else "hoisted_batch_minor",
            source="model",
            predicted_ms=123.0,
            measured_ms=124.0,
            best="hoisted_batch_minor" if index else "hoisted",
            best_ms=123.4,
            default_ms=150.0,
            stored=False,
        )
        for index in range(count)
    ]
    return QuickstartFinished(
        database="some.sqlite", device="CPU", checks=tuple(rows), unchecked=0, default="torch_lstm", seconds=9
    )


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_of_quickstart_breaks_no_name(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    check_table.print_result(Console(width=columns, highlight=False), finished(2), None)
    text = capsys.readouterr().out
    table = text.split("selector.choose")[0]
    assert max(map(len, table.splitlines())) <= columns
    assert table.count("hoisted_batch_minor") == 2
    assert "…" not in table
    assert "hidden x batch" in table
    assert table.count("infer 2") == 1


def test_one_is_singular(capsys: pytest.CaptureFixture[str]) -> None:
    check_table.print_result(Console(width=80, highlight=False), finished(1), None)
    assert "1 problem, not profiled before" in capsys.readouterr().out
    assert [output.number_of(count, "problem") for count in (0, 1, 2)] == [
        "0 problems",
        "1 problem",
        "2 problems",
    ]


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_an_unknown_operator_is_refused_before_anything_is_said(
    command: str, capsys: pytest.CaptureFixture[str], database_file: Path
) -> None:
    assert main([command, "foo", "--database", str(database_file)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: Unknown operator 'foo'")
    assert captured.out == ""
