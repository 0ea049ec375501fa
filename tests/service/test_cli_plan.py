"""`selector plan` and `selector inspect`: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kernel_selector.service.cli import main

MODEL = ["lstm-language-model", "hidden=64", "vocabulary=100", "seq=20", "dtype=float32"]
INSPECTED = "benchmarks.models.examples:adversarial"


def asked(database: Path, *more: str) -> list[str]:
    """A plan of a small model on this machine's processor."""
    return ["plan", *MODEL, "--device", "cpu", "--memory", "64MiB", "--database", str(database), *more]


def test_a_plan_as_text_and_json(database_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(asked(database_file)) == 0
    text = capsys.readouterr().out
    assert "lstm-language-model on" in text
    assert "samples/s" in text
    assert "recurrent" in text
    assert main(asked(database_file, "--batch", "4", "--optimizer", "sgd", "--json")) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["batch"] == 4
    assert plan["memory"]["optimizer"] == 0
    assert plan["peak_bytes"] <= plan["limit_bytes"] == 64 * 2**20
    assert not plan["replayed"]
    assert main(asked(database_file, "--replay", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["replayed"]


def test_the_frontier_is_printed_and_drawn(
    database_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "frontier.svg"
    assert main(asked(database_file, "--pareto", "--svg", str(picture))) == 0
    assert "ratio" in capsys.readouterr().out
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert main(asked(database_file, "--pareto", "--json")) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [point["limit_bytes"] for point in points] == sorted(point["limit_bytes"] for point in points)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["plan", "bert-huge"], "bert-huge"),
        (["plan", "seq=3"], "no model"),
        (["plan", "bert-large", "seq=many"], "expected int"),
        (["plan", "bert-large", "--device", "cpu", "--batch", "few"], "few"),
        (["plan", "bert-large", "--device", "cpu", "--memory", "1MiB"], "parameters"),
        (["plan", *MODEL, "--device", "cpu", "--pareto", "--batch", "8"], "--batch 8"),
        (["plan", *MODEL, "--device", "cpu", "--svg", "no/such.svg"], "no folder no"),
        (["inspect", "nowhere"], "package.module:function"),
        (["inspect", "nowhere.at:all"], "cannot be found"),
        (["inspect", "time:time"], "expected (model, example_inputs)"),
        (["inspect", "time:timezone"], "time:timezone is int: expected a function"),
        (["inspect", "math:sqrt"], "math:sqrt raised TypeError: "),
        (["inspect", INSPECTED, "--optimizer", "lion"], "lion"),
    ],
)
def test_bad_input_is_refused(
    change: list[str], words: str, database_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = ["--database", str(database_file)] if change[0] == "plan" else []
    assert main([*change, *database]) == 2
    assert words in capsys.readouterr().err


def test_an_inspection_as_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", INSPECTED, "--after", INSPECTED, "--most", "3"]) == 0
    text = capsys.readouterr().out
    assert "before" in text
    assert "feature maps" in text
    assert main(["inspect", INSPECTED, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["inspections"]
    assert found["model"] == "Adversarial"
    assert found["peak_bytes"] > found["weight_bytes"]
